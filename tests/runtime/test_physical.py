"""What the real device reports, and that overrides reach it."""

from __future__ import annotations

import pytest

from vkinductor.runtime import context, physical
from vkinductor.runtime.errors import NoDeviceError, UnsupportedError, VulkanError


def test_devices_are_listed_with_sane_facts():
    devices = physical.list_devices()
    assert [d.index for d in devices] == list(range(len(devices)))
    for info in devices:
        if info.missing:
            continue
        assert len(info.uuid) == len(info.pipeline_uuid) == 32
        assert info.limits.max_push_constants >= 128
        assert info.limits.subgroup_size_min <= info.limits.subgroup_size <= info.limits.subgroup_size_max
        assert info.limits.max_shared_memory >= 16384
        assert info.heaps
        assert any(heap.device_local for heap in info.heaps)
        assert info.features.int64
        assert info.driver_name
        assert not info.features.cooperative_matrix or info.cooperative_shapes


def test_the_open_device_is_the_chosen_one(device):
    assert device.info == physical.choose(physical.list_devices())
    assert context.is_open()
    assert context.get() is device


def test_limits_can_be_lowered(fresh_device):
    device = fresh_device(VKINDUCTOR_LIMITS="max_shared_memory=16384,subgroup_ops=0,max_workgroup_count=64x8x4")
    assert device.info.limits.max_shared_memory == 16384
    assert device.info.limits.max_workgroup_count == (64, 8, 4)
    assert not device.info.features.subgroup_arithmetic
    assert not device.info.features.subgroup_shuffle


def test_a_required_feature_switched_off_is_refused_by_name(fresh_device):
    with pytest.raises(UnsupportedError, match="shaderInt64"):
        fresh_device(VKINDUCTOR_LIMITS="int64=0")


def test_a_failed_opening_leaves_nothing_behind(fresh_device, monkeypatch):
    with pytest.raises(NoDeviceError, match="voodoo"):
        fresh_device(VKINDUCTOR_DEVICE="voodoo")
    assert not context.is_open()
    monkeypatch.delenv("VKINDUCTOR_DEVICE")
    assert context.get()


def test_a_device_can_be_chosen_by_its_uuid(fresh_device):
    uuid = context.get().info.uuid
    assert fresh_device(VKINDUCTOR_DEVICE=uuid.upper()).info.uuid == uuid


def test_a_bad_override_is_an_error_with_the_known_names(fresh_device):
    with pytest.raises(VulkanError, match="max_shared_memory"):
        fresh_device(VKINDUCTOR_LIMITS="wings=2")


def test_the_runtime_works_without_torch_and_opens_nothing_at_import(kernels):
    code = """
sys.modules["torch"] = None  # an import would fail
import pkgutil, importlib, vkinductor.runtime as package
for module in pkgutil.walk_packages(package.__path__, "vkinductor.runtime."):
    importlib.import_module(module.name)
from vkinductor.runtime import context
print("vulkan" in sys.modules, "jinja2" in sys.modules, context.is_open())
address = context.get().memory.allocate(100)
context.get().stream.fill(address, 100, 1)
context.get().synchronize()
print(context.is_open())
"""
    result = kernels.python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False", "False", "False", "True"]
