"""The package's functions: thin fronts on the runtime and the device. Nothing here opens Vulkan before it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkinductor.runtime.deviceinfo import DeviceInfo


def register() -> None:
    """Register the torch device "vulkan" and what happens when it is first opened. Idempotent."""
    from vkinductor.device import hooks, registration

    registration.register()
    hooks.add_on_init(_register_compiler)


def _register_compiler() -> None:
    from vkinductor import codegen
    from vkinductor.codegen.eager import EagerCompiler
    from vkinductor.device import hooks

    codegen.register()
    hooks.set_compile_op(EagerCompiler())


def is_available() -> bool:
    """Whether a usable Vulkan device is there. Opens it; never raises."""
    from vkinductor.runtime import context
    from vkinductor.runtime.errors import VulkanError

    try:
        context.get()
    except VulkanError:
        return False
    return True


def device_count() -> int:
    """Number of Vulkan devices of this machine (0 without a loader or driver)."""
    from vkinductor.runtime.errors import VulkanError
    from vkinductor.runtime.physical import list_devices

    try:
        return len(list_devices())
    except VulkanError:
        return 0


def device_info(index: int | None = None) -> DeviceInfo:
    """What is known of device ``index`` (None: the one in use): limits, features, memory heaps in bytes.

    Raises NoDeviceError when there is no such device.
    """
    from vkinductor.runtime import context
    from vkinductor.runtime.errors import NoDeviceError
    from vkinductor.runtime.physical import list_devices

    if index is None:
        return context.get().info
    devices = list_devices()
    if not 0 <= index < len(devices):
        raise NoDeviceError(f"there is no Vulkan device {index}: this machine has {len(devices)}")
    return devices[index]


def device_name(index: int | None = None) -> str:
    """Name of device ``index`` (None: the one in use). Raises NoDeviceError when there is none."""
    return device_info(index).name


def synchronize() -> None:
    """Wait until the device has finished everything queued. Raises DeviceLostError when it stopped answering."""
    from vkinductor.runtime import context

    if context.is_open():
        context.get().stream.synchronize()


def memory_stats() -> dict[str, int]:
    """Bytes allocated and reserved on the device, their peaks, and counts of allocations and blocks."""
    import dataclasses

    from vkinductor.device.registry import registry

    device = registry.open()
    device.ledger.sweep()
    return dataclasses.asdict(device.memory.stats())


def empty_cache() -> int:
    """Give unused device memory back to the driver; returns the bytes released."""
    from vkinductor.device.registry import registry

    device = registry.open()
    device.ledger.sweep()
    return device.memory.empty_cache()


def cache_stats() -> dict[str, Any]:
    """Hits, misses and bytes of the disk caches (spirv, pipeline, tuning)."""
    from vkinductor.runtime import context

    return context.get().store.stats()


def stats() -> dict[str, Any]:
    """Counters since the start or the last ``reset_stats``: dispatches, submits, barriers, kernels_compiled, h2d_bytes,
    d2h_bytes, ... as ints, and ``fallbacks``: operator name -> times it ran on the CPU."""
    from vkinductor.runtime.stats import counters

    return counters.snapshot()


def reset_stats() -> None:
    """Zero all counters."""
    from vkinductor.runtime.stats import counters

    counters.reset()
