"""What the documentation shows runs: the README's example, the small examples, and every file a page links to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vkinductor.runtime import env

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EXAMPLES = ("quickstart.py", "train.py", "custom_operator.py")  # generate.py needs the model of `make demo`


def run(*arguments: str) -> str:
    # The small graphs here are not what caches are for, and a shared one would hide a failure to compile.
    environment = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_readme_example():
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    first, second = run("-c", code).splitlines()
    assert first == "True"
    assert second.startswith("vulkan:0 ")


def test_the_code_about_operators_runs():
    text = (ROOT / "docs" / "custom-operators.md").read_text()
    run("-c", "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
    assert run(str(ROOT / "examples" / name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_environment_variable_is_documented():
    text = (ROOT / "docs" / "options.md").read_text()
    assert [name for name in env.VARIABLES if f"`{name}`" not in text] == []
