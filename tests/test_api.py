"""The package's functions: types, what they count, what opens the device, which errors they raise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vkinductor


def run(code: str, **environment: str) -> list[str]:
    """Lines that a fresh interpreter prints."""
    env = {**os.environ, **environment}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), env.get("PYTHONPATH", "")])
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_every_name_is_there_and_documented() -> None:
    for name in vkinductor.__all__:
        assert getattr(vkinductor, name).__doc__
    with pytest.raises(AttributeError, match="is_available"):
        vkinductor.is_avaliable  # noqa: B018


def test_devices() -> None:
    assert vkinductor.is_available() is True
    assert vkinductor.device_count() >= 1
    info = vkinductor.device_info()
    assert vkinductor.device_name() == info.name
    assert vkinductor.device_info(info.index).uuid == info.uuid
    for index in (-1, vkinductor.device_count()):
        with pytest.raises(vkinductor.NoDeviceError, match=str(index)):
            vkinductor.device_info(index)


def test_counters() -> None:
    x = torch.ones(8, device="vulkan")
    vkinductor.reset_stats()
    assert not any(value for value in vkinductor.stats().values())
    (x + 1).cpu()
    vkinductor.synchronize()
    stats = vkinductor.stats()
    assert stats["dispatches"] >= 1
    assert stats["submits"] >= 1
    assert stats["d2h_bytes"] == 32
    assert stats["fallbacks"] == {}
    for name in ("barriers", "recordings", "replays", "kernels_compiled", "h2d_bytes"):
        assert type(stats[name]) is int
    stats["fallbacks"]["mine"] = 1  # a snapshot: the caller's to change
    assert vkinductor.stats()["fallbacks"] == {}


def test_memory() -> None:
    before = vkinductor.memory_stats()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="vulkan")
    during = vkinductor.memory_stats()
    assert during["allocated_bytes"] >= before["allocated_bytes"] + (1 << 20)
    assert during["peak_allocated_bytes"] >= during["allocated_bytes"]
    del x
    assert vkinductor.memory_stats()["allocated_bytes"] == before["allocated_bytes"]
    released = vkinductor.empty_cache()
    assert type(released) is int
    assert vkinductor.memory_stats()["reserved_bytes"] == during["reserved_bytes"] - released


def test_caches() -> None:
    torch.compile(lambda x: x * 2 + 5, backend="vulkan")(torch.ones(3))
    stats = vkinductor.cache_stats()
    assert set(stats) >= {"graph", "spirv", "pipeline"}
    for kind in stats.values():
        assert set(kind) >= {"hits", "misses", "bytes"}
        assert all(type(value) is int for value in kind.values())
    assert stats["graph"]["bytes"] > 0


def test_importing_and_cpu_work_open_nothing() -> None:
    code = """
import torch, vkinductor
from vkinductor.runtime import context
vkinductor.synchronize(); vkinductor.stats(); vkinductor.reset_stats()
torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(3))
torch.manual_seed(0); torch.accelerator.current_stream()
print(context.is_open())
print(vkinductor.is_available(), context.is_open())
"""
    assert run(code) == ["False", "True True"]


def test_without_a_device() -> None:
    code = """
import torch, vkinductor
print(vkinductor.is_available(), vkinductor.device_count(), vkinductor.stats()["dispatches"])
for call in (vkinductor.device_info, vkinductor.device_name, vkinductor.memory_stats, vkinductor.empty_cache,
             vkinductor.cache_stats, lambda: torch.ones(3, device="vulkan"), lambda: torch.ones(3).to("vulkan")):
    try:
        call()
        print("no error")
    except Exception as error:
        print(type(error).__name__)
vkinductor.synchronize()
print(torch.ones(3).sum().item())
"""
    lines = run(code, VK_DRIVER_FILES="/nothing.json", VK_ICD_FILENAMES="/nothing.json")
    assert lines == ["False 0 0", *["NoDeviceError"] * 7, "3.0"]


def test_entry_point_needs_no_import() -> None:
    code = """
import torch
y = torch.compile(lambda x: x * 2, backend="vulkan")(torch.ones(3))
print(y.tolist())
"""
    import importlib.metadata

    if not any(e.name == "vulkan" for e in importlib.metadata.entry_points(group="torch_dynamo_backends")):
        pytest.skip("the package is not installed: there is no entry point")
    assert run(code) == ["[2.0, 2.0, 2.0]"]
