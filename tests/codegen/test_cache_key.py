"""What makes a cached graph stale: any source that writes code, and the package's version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import vkinductor
from vkinductor.codegen.cache_key import code_version, hash_of

PACKAGE = Path(vkinductor.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "vkinductor", ignore=shutil.ignore_patterns("__pycache__")))


def test_the_same_code_has_the_same_version(copy):
    assert hash_of(copy, vkinductor.__version__) == code_version()


@pytest.mark.parametrize("kind", ["templates/*.jinja", "templates/lib/*.glsl", "codegen/*.py", "runtime/abi.py"])
def test_a_changed_source_is_another_version(copy, kind):
    file = next(copy.glob(kind))
    file.write_text(file.read_text() + "\n")
    assert hash_of(copy, vkinductor.__version__) != code_version()


def test_another_version_number_is_another_version(copy):
    assert hash_of(copy, "99.0") != code_version()
