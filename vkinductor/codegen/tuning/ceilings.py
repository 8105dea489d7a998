"""What the device can reach at best, as measured: the bandwidth of a copy, and the best rate of any matrix product."""

from __future__ import annotations

import json

from vkinductor.runtime.device import Device
from vkinductor.runtime.errors import VulkanError

from .clock import Clock
from .family import Family
from .results import KIND, Results

# Bytes that one copy reads; more than any cache.
_COPIED = 256 << 20
_COPIED_CPU = 32 << 20
_SAMPLES = 7


class _Copy:
    """Copies between two halves of a block."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.count = 0
        self._device, self._nbytes = device, nbytes
        self.address = device.memory.allocate(2 * nbytes)

    def run(self, count: int = 1) -> None:
        for _ in range(count):
            self._device.stream.copy(self.address + self._nbytes, self.address, self._nbytes)


def copy_bandwidth(device: Device) -> float | None:
    """Bytes a second, read and written, of copying on the device; measured once and stored. None: no memory for it."""
    info = device.info
    key = repr(("copy bandwidth", info.uuid, info.driver_uuid, info.driver_version))
    stored = device.store.get(KIND, key)
    try:
        if stored is not None:
            return float(json.loads(stored))
    except (ValueError, TypeError):
        pass
    nbytes = _COPIED_CPU if info.kind == "cpu" else _COPIED
    clock = Clock(device)
    try:
        copy = _Copy(device, nbytes)
    except VulkanError:
        return None
    try:
        best = min(clock.sample(copy) for _ in range(_SAMPLES))
    finally:
        device.stream.synchronize()
        clock.close()
        device.memory.free(copy.address)
    found = 2 * nbytes / best * 1e6
    device.store.put(KIND, key, json.dumps(found).encode())
    return found


def best_rate(known: Results, family: Family, kind: str) -> float | None:
    """Operations a second of the fastest stored result whose dtype is ``kind``'s (its first word); None without one."""
    dtype, best = kind.split()[0], 0.0
    for bucket, _ in list(known.index(family).values()):
        if bucket.kind.split()[0] == dtype:
            result = known.find(family, bucket)
            if result is not None and result.time > 0:
                best = max(best, result.flops / result.time * 1e6)
    return best or None
