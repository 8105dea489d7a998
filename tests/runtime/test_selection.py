"""The choice of a device on fake lists, and the overrides of limits."""

from __future__ import annotations

import dataclasses

import pytest

from vkinductor.runtime.deviceinfo import DeviceInfo, Features, Limits
from vkinductor.runtime.errors import NoDeviceError, UnsupportedError, VulkanError
from vkinductor.runtime.physical import choose
from vkinductor.runtime.selection import REQUIRED, apply_overrides, missing_requirements

CPU = DeviceInfo(0, "llvmpipe (LLVM 15)", "cpu", uuid="00" * 16)
IGPU = DeviceInfo(1, "Intel(R) Iris(R) Xe Graphics", "integrated", uuid="11" * 16)
DGPU = DeviceInfo(2, "NVIDIA GeForce RTX 4090", "discrete", uuid="22" * 16)
VGPU = DeviceInfo(3, "Virtio-GPU Venus", "virtual", uuid="33" * 16)
OLD = DeviceInfo(4, "AMD Radeon HD 7970", "discrete", uuid="44" * 16, missing=("shaderInt64",))
ALL = (CPU, IGPU, DGPU, VGPU, OLD)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (ALL, DGPU),
        ((CPU, IGPU, VGPU), IGPU),
        ((CPU, VGPU), VGPU),
        ((CPU,), CPU),
        ((CPU, OLD), CPU),  # the only GPU cannot be used
        ((OLD, CPU, IGPU), IGPU),
    ],
)
def test_kinds_in_order_and_never_the_cpu_beside_a_gpu(devices, expected):
    assert choose(devices) is expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("0", CPU),
        ("2", DGPU),
        ("4090", DGPU),  # no such index, so a name
        ("iris", IGPU),
        ("LLVMPIPE", CPU),
        ("33" * 16, VGPU),
        ("33333333-3333-3333-3333-333333333333", VGPU),
    ],
)
def test_selectors(selector, expected):
    assert choose(ALL, selector) is expected


def test_a_name_that_matches_several_takes_the_best_kind():
    other = dataclasses.replace(IGPU, index=7, name="NVIDIA Tegra")
    assert choose((other, DGPU), "nvidia") is DGPU


def test_a_name_that_matches_a_usable_and_an_unusable_device_takes_the_usable_one():
    new = dataclasses.replace(DGPU, index=9, name="AMD Radeon RX 7900")
    assert choose((OLD, new), "radeon") is new


def test_unknown_selector_lists_the_devices():
    with pytest.raises(NoDeviceError) as caught:
        choose(ALL, "voodoo")
    assert "voodoo" in str(caught.value)
    assert all(device.name in str(caught.value) for device in ALL)


def test_a_selected_device_that_lacks_something_names_it():
    with pytest.raises(UnsupportedError, match="shaderInt64"):
        choose(ALL, "7970")


def test_no_devices_and_no_usable_ones():
    with pytest.raises(NoDeviceError, match="Install a driver"):
        choose(())
    with pytest.raises(UnsupportedError, match="shaderInt64"):
        choose((OLD,))


def test_missing_requirements_are_named():
    everything = Features(**dict.fromkeys(REQUIRED, True))
    assert missing_requirements((1, 3, 0), everything) == ()
    assert missing_requirements((1, 1, 0), everything)[0].startswith("Vulkan 1.2")
    without = dataclasses.replace(everything, int64=False)
    assert missing_requirements((1, 2, 0), without, has_compute_queue=False) == (
        "a compute queue",
        "shaderInt64",
    )


def test_overrides():
    limits = Limits(max_shared_memory=49152, max_workgroup_size=(1024, 1024, 64))
    features = Features(subgroup_arithmetic=True, subgroup_shuffle=True, float16=True)
    text = "max_shared_memory=16384, subgroup_ops=0,float16=0,max_workgroup_size=256x256x64"
    text += ",subgroup_size_min=0x8"
    new_limits, new_features = apply_overrides(limits, features, text)
    assert new_limits == dataclasses.replace(
        limits, max_shared_memory=16384, max_workgroup_size=(256, 256, 64), subgroup_size_min=8
    )
    assert new_features == Features()


@pytest.mark.parametrize(
    "text",
    [
        "max_shared_memory=999999",  # more than the device has
        "min_storage_alignment=1",
        "nonsense=1",
        "max_shared_memory",
        "max_shared_memory=many",
        "max_workgroup_size=64",
    ],
)
def test_bad_overrides_say_what_is_wrong(text):
    with pytest.raises(VulkanError, match="VKINDUCTOR_LIMITS"):
        apply_overrides(Limits(), Features(), text)


def test_a_feature_that_is_absent_cannot_be_switched_on():
    assert apply_overrides(Limits(), Features(), "float64=1") == (Limits(), Features())
