"""`torch.vulkan`: what torch, and people, expect of a device module.

Thin: each function asks the registry, the runtime or `random`. Device indices are 0 or None: torch sees one
device, the one that VKINDUCTOR_DEVICE chose. Nothing here opens Vulkan unless it says so.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from vkinductor.device import autocast, guards, random, storage
from vkinductor.device.registry import DEVICE_NAME, registry
from vkinductor.runtime.errors import UnsupportedError, VulkanError
from vkinductor.runtime.replay.resources import release_scratch

_Device = int | str | torch.device | None


def _check(index: _Device) -> None:
    guards.check_device(torch.device(DEVICE_NAME, index) if isinstance(index, int) else index)


# Devices.


def is_available() -> bool:
    """Whether a device can be used. Lists devices (once), opens none."""
    if registry.available is None:
        from vkinductor.runtime import physical

        try:
            registry.available = bool(physical.list_devices())
        except VulkanError:
            registry.available = False
    return registry.available


def device_count() -> int:
    """1 if a device can be used, else 0."""
    return int(is_available())


def current_device() -> int:
    """0: torch sees one device."""
    return 0


def set_device(device: _Device) -> None:
    """Accept device 0; raise `UnsupportedError` for any other."""
    _check(device)


class device:
    """Context manager that selects a device: there is one, so it only checks the index."""

    def __init__(self, device: _Device = None) -> None:
        _check(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


def is_initialized() -> bool:
    """Whether Vulkan has been opened in this process."""
    return registry.current() is not None


def __getattr__(name: str) -> Any:
    # torch.utils.checkpoint saves the random state only of a module whose `_initialized` is true.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def init() -> None:
    """Open the device now instead of on first use.

    Raises:
        NoDeviceError, UnsupportedError.
    """
    registry.open()


def _lazy_init() -> None:
    """What torch's C++ calls before it asks for a stream or an index, and Dynamo does so for any function: nothing.

    The device opens when memory is first wanted, so that compiling for the CPU does not depend on it.
    """


def _is_in_bad_fork() -> bool:
    return registry.pid is not None and registry.pid != os.getpid()


def synchronize(device: _Device = None) -> None:
    """Wait until all work given to the device is done."""
    _check(device)
    open_device = registry.current()
    if open_device is not None:
        open_device.stream.synchronize()


def get_device_name(device: _Device = None) -> str:
    """The name the driver gives the device. Opens it."""
    return get_device_properties(device).name


def get_device_properties(device: _Device = None) -> Any:
    """The runtime's `DeviceInfo`: name, kind, limits, features, heaps. Opens the device."""
    _check(device)
    return registry.open().runtime.info


# Memory.


def memory_stats(device: _Device = None) -> dict[str, int]:
    """Bytes and counts of the allocator, after memory of dead tensors has been given back; {} before the
    device is open."""
    _check(device)
    open_device = registry.current()
    if open_device is None:
        return {}
    storage.sweep()
    stats = open_device.memory.stats()
    return {name: getattr(stats, name) for name in stats.__dataclass_fields__}


def memory_allocated(device: _Device = None) -> int:
    """Bytes that live tensors occupy."""
    return memory_stats(device).get("allocated_bytes", 0)


def memory_reserved(device: _Device = None) -> int:
    """Bytes taken from the driver."""
    return memory_stats(device).get("reserved_bytes", 0)


def max_memory_allocated(device: _Device = None) -> int:
    """The most bytes that were allocated at once. Memory of tensors that died counts until a sweep finds
    it."""
    return memory_stats(device).get("peak_allocated_bytes", 0)


def max_memory_reserved(device: _Device = None) -> int:
    """The most bytes that were taken from the driver at once."""
    return memory_stats(device).get("peak_reserved_bytes", 0)


def empty_cache() -> None:
    """Give blocks that no tensor uses back to the driver. Waits for the device."""
    open_device = registry.current()
    if open_device is not None:
        open_device.stream.synchronize()
        storage.sweep()
        release_scratch(open_device.runtime)
        open_device.memory.empty_cache()


# Random numbers.


def manual_seed(seed: int) -> None:
    """Seed the device's generator. `torch.manual_seed` does so as well."""
    random.manual_seed(seed)


def seed() -> None:
    """Seed the device's generator with a number that is not deterministic."""
    random.seed()


def initial_seed() -> int:
    """The seed the device's generator was last given."""
    return random.generator().initial_seed()


def get_rng_state(device: _Device = DEVICE_NAME) -> torch.Tensor:
    """The state of the device's generator: a uint8 tensor on the CPU."""
    _check(device)
    return random.get_state()


def set_rng_state(new_state: torch.Tensor, device: _Device = DEVICE_NAME) -> None:
    """Restore a state from `get_rng_state`."""
    _check(device)
    random.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices: a list of one."""
    return [random.get_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restore the states from `get_rng_state_all`."""
    for state in new_states:
        random.set_state(state)


manual_seed_all = manual_seed
seed_all = seed


# Mixed precision, streams, events.


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes `torch.autocast("vulkan", dtype=...)` accepts."""
    return list(autocast.SUPPORTED_DTYPES)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 is stored as such and computed in float32 on every device."""
    return including_emulation or registry.open().runtime.info.features.shader_bfloat16


def current_stream(device: _Device = None) -> torch.Stream:
    """The device's one in-order queue, as torch names it."""
    _check(device)
    return torch.Stream(device=torch.device(DEVICE_NAME, 0))


default_stream = current_stream


class Event:
    """A point in the queue. `record` waits for the device, so that times between events are those of the work
    between."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise UnsupportedError("vulkan events cannot be shared between processes")
        self.enable_timing = enable_timing
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Wait for all work so far and note the time."""
        synchronize()
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to do: the queue is in order."""

    def query(self) -> bool:
        """True: a recorded event has been reached."""
        return True

    def synchronize(self) -> None:
        """Nothing to do: a recorded event has been reached."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`.

        Raises:
            RuntimeError: one of them was made without enable_timing, or has not been recorded.
        """
        if not (self.enable_timing and end.enable_timing) or self._time is None or end._time is None:
            raise RuntimeError(
                "both events must be made with enable_timing=True and be recorded before their times are compared"
            )
        return (end._time - self._time) * 1e3
