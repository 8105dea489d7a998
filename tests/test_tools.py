"""The project's environment: which torch it gets, what uv is told, and what becomes of each version of torch."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent

PIP_CONFIG = """\
:env:.default-timeout='180'
:env:.find-links='one two'
:env:.disable-pip-version-check='1'
global.cert='ca.crt'
global.find-links='none'
global.extra-index-url='file:a file:b\\nfile:c'
install.constraint='c.txt'
list.format='columns'
"""


@pytest.fixture
def tool(monkeypatch):
    """A function of a name that gives the module of tools/."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module


def test_uv_is_told_what_pip_is_told(tool):
    assert tool("uv_settings").translated(PIP_CONFIG) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_HTTP_TIMEOUT": "180",
        "UV_FIND_LINKS": "one,two",
        "SSL_CERT_FILE": "ca.crt",
        "UV_INDEX": "file:a file:b file:c",
        "UV_CONSTRAINT": "c.txt",
    }


@pytest.mark.parametrize("line", ["global.no-index='true'", "install.no-binary='numpy'", ":env:.platform='any'"])
def test_what_uv_cannot_be_told_is_left_to_pip(tool, line):
    assert tool("uv_settings").translated(PIP_CONFIG + line + "\n") is None


def script(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def environment(tool, tmp_path, monkeypatch):
    """An environment whose programs write down what they are asked; `pip config list` prints nothing."""
    for name in ("PIP_INDEX_URL", "TORCH_INDEX_URL", "TORCH_VERSION", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.delenv(name, raising=False)
    script(tmp_path / "bin" / "python", f'[ "$3" = config ] || echo "pip $@" >>"{tmp_path}/asked"')
    script(tmp_path / "bin" / "uv", f'echo "uv $@" "${{UV_COMPILE_BYTECODE-}}" >>"{tmp_path}/asked"')
    return tool("setup_env").Environment(tmp_path)


def asked(environment) -> list[str]:
    lines = (environment.path / "asked").read_text().splitlines()
    return [re.sub(r"(?:-m pip --disable-pip-version-check|pip) (?=install)|--python \S+ ", "", s) for s in lines]


def test_uv_installs(environment, monkeypatch):
    environment.install("--quiet", "six")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment.install("--quiet", "six")
    assert [line.rstrip() for line in asked(environment)] == ["uv install --quiet six", "uv install --quiet six 1"]


def test_pip_installs_what_uv_cannot(environment):
    script(environment.path / "bin" / "uv", "exit 2")
    environment.install("--quiet", "six")
    assert asked(environment) == ["pip install --quiet six"]


def test_pip_installs_without_uv(environment):
    (environment.path / "bin" / "uv").unlink()
    environment.install("six")
    assert asked(environment) == ["pip install six"]


@pytest.mark.parametrize(
    ("printed", "wanted", "found"),
    [
        ("2.13.0+cpu", None, True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13", True),
        ("2.13.1", "2.13.*", True),
        ("2.13.1", "2.13", False),
        ("2.13.0+cpu", "2.11.0", False),
        ("2.15.0", None, False),
    ],
)
def test_a_torch_that_is_there_has_to_be_the_one_asked_for(tool, monkeypatch, printed, wanted, found):
    setup_env = tool("setup_env")
    done = SimpleNamespace(returncode=0, stdout=f"{printed}\nfolder\n")
    monkeypatch.setattr(setup_env.subprocess, "run", lambda *args, **kwargs: done)
    if wanted is None:
        monkeypatch.delenv("TORCH_VERSION", raising=False)
    else:
        monkeypatch.setenv("TORCH_VERSION", wanted)
    assert setup_env.probe_torch("python") == ((printed, "folder") if found else None)


@pytest.mark.parametrize("recorded", ["2.13.0", "2.13.0+cpu", None])
def test_torch_is_pinned_to_the_version_that_pip_recorded(tool, tmp_path, recorded):
    """Wheels with CUDA that an index has as 2.13.0 call themselves 2.13.0+cu130: pip knows no such version."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.13.0+cu130'\n")
    if recorded:
        (tmp_path / f"torch-{recorded}.dist-info").mkdir()
        record = f"Metadata-Version: 2.1\nName: torch\nVersion: {recorded}\n"
        (tmp_path / f"torch-{recorded}.dist-info" / "METADATA").write_text(record)
    done = subprocess.run(
        [sys.executable, "-S", "-c", tool("setup_env").TORCH_PROBE], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines() == [recorded or "2.13.0+cu130", str(tmp_path)], done.stderr


def test_a_version_that_no_index_has_is_told_apart(tool, environment, monkeypatch):
    """From other failures, by the exit status."""
    setup_env = tool("setup_env")
    monkeypatch.setenv("TORCH_VERSION", "2.11.0")
    monkeypatch.setattr(setup_env.system, "ensure_vulkan", lambda: None)
    monkeypatch.setattr(setup_env, "create", lambda environment: environment.stamps.mkdir(exist_ok=True))
    monkeypatch.setattr(setup_env, "probe_torch", lambda python: None)
    monkeypatch.setattr(sys, "argv", ["setup_env.py", "--venv", str(environment.path)])
    script(environment.path / "bin" / "uv", "exit 2")
    script(environment.path / "bin" / "python", 'for word; do case "$word" in torch==*) exit 1;; esac; done')
    assert setup_env.main() == setup_env.NO_TORCH
    monkeypatch.setattr(setup_env, "probe_torch", lambda python: ("2.11.0", "folder"))
    script(environment.path / "bin" / "python", 'for word; do case "$word" in *demo*) exit 1;; esac; done')
    assert setup_env.main() == 1


def test_the_versions_are_the_ends_of_what_is_allowed(tool):
    lowest, below = re.search(r'"torch>=(\d+\.\d+),<(\d+\.\d+)"', (ROOT / "pyproject.toml").read_text()).groups()
    major, minor = below.split(".")
    oldest, newest = tool("versions").VERSIONS
    assert oldest == f"{lowest}.0"
    assert newest.startswith(f"{major}.{int(minor) - 1}.")


PASSED = "=== 3 passed, 1 skipped, 2 warnings in 2.50s ===\n"


@pytest.fixture
def versions(tool, tmp_path, monkeypatch):
    """A function (exit code of the setup, of the tests, options) -> exit code of the tool."""
    module = tool("versions")

    def run(setup: int, tests: int, *options: str) -> int:
        def process(command, stdout, **kwargs):
            making = "setup_env.py" in command[1]
            stdout.write(
                "ERROR: No matching distribution\n"
                if making and setup
                else "=== 3 passed, 1 skipped, 2 warnings in 2.50s ===\n"
            )
            return subprocess.CompletedProcess(command, setup if making else tests)

        monkeypatch.setattr(module.subprocess, "run", process)
        monkeypatch.setattr(sys, "argv", ["versions.py", "--folder", str(tmp_path), "--only", "2.11.0", *options])
        return module.main()

    return run


def test_a_version_that_passes(versions, tmp_path, capsys):
    assert versions(0, 0, "--discard") == 0
    assert capsys.readouterr().out == "torch 2.11.0: passed 3, skipped 1 (2.50 s)\n"
    assert not tmp_path.exists()


def test_a_version_that_fails_shows_its_log(versions, capsys):
    assert versions(0, 1) == 1
    assert "tests.log:\n=== 3 passed" in capsys.readouterr().out


def test_a_version_that_is_not_to_be_had_is_said(versions, tool, capsys):
    missing = tool("setup_env").NO_TORCH
    assert versions(missing, 0) == 0
    said = "torch 2.11.0: cannot be had here, NOT TESTED: ERROR: No matching distribution\n"
    assert capsys.readouterr().out == said
    assert versions(missing, 0, "--require") == 1


def test_an_environment_that_fails_otherwise_is_a_failure(versions, capsys):
    assert versions(1, 0) == 1
    assert "torch 2.11.0: no environment: ERROR: No matching distribution\n" in capsys.readouterr().out
