"""The warm command: a program runs as it would alone, and what it compiled can be taken elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vkinductor.cli import main

SCRIPT = """
import sys
import torch
import helper
assert __name__ == "__main__"
assert sys.argv[1:] == ["--size", "5"], sys.argv
m = torch.nn.Linear(5, 3)
print("result", torch.compile(m, backend="vulkan")(torch.ones(2, 5)).shape, helper.NAME)
sys.exit(int(helper.CODE))
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "VKINDUCTOR_CACHE_DIR": str(folder / "vk")}
    root = str(Path(__file__).parents[2])
    env = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    line = [sys.executable, "-m", "vkinductor", *arguments]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "helper.py").write_text("NAME, CODE = 'helper', 0\n")
    (folder / "script.py").write_text(SCRIPT)
    return folder / "script.py"


def test_a_cache_is_filled_shipped_and_used(tmp_path, script):
    packed = tmp_path / "cache.tar"
    there = tmp_path / "there"
    options = ["--output", str(packed), "--json", str(tmp_path / "report.json")]
    result = command(tmp_path / "here", "warm", *options, str(script), "--size", "5")
    assert result.returncode == 0, result.stderr
    assert "result torch.Size([2, 3]) helper" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["graphs"] == 1
    assert report["kernels"] >= 1
    assert report["bytes"] > 0
    assert not list((tmp_path / "here").rglob("spirv/*/*"))  # the caches of the archive were its own
    assert command(there, "cache", "--import", str(packed)).returncode == 0
    result = command(there, "warm", "--json", "-", str(script), "--size", "5")
    assert result.returncode == 0, result.stderr
    again = json.loads(result.stdout[result.stdout.index("{") :])
    assert (again["graphs"], again["kernels"]) == (0, 0)


def test_the_scripts_exit_code_is_kept(tmp_path, capsys):
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(7)")
    assert main(["warm", str(script)]) == 7
    assert "nothing was added" in capsys.readouterr().out


def test_the_scripts_error_passes_through(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise KeyError('theirs')")
    with pytest.raises(KeyError, match="theirs"):
        main(["warm", str(script)])


def test_no_script(tmp_path, capsys):
    assert main(["warm", str(tmp_path / "nowhere.py")]) == 1
    assert "error: there is no program" in capsys.readouterr().err
