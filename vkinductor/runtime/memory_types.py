"""Which memory type serves which purpose on a device. A pure function of `DeviceInfo`, so every layout can be
tested.
"""

from __future__ import annotations

from dataclasses import dataclass

from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.errors import UnsupportedError

DEVICE_LOCAL = 0x1
HOST_VISIBLE = 0x2
HOST_COHERENT = 0x4
HOST_CACHED = 0x8
_MAPPABLE = HOST_VISIBLE | HOST_COHERENT
# Lazily allocated, protected, AMD's device-coherent and -uncached, NVIDIA's RDMA: never wanted here.
_EXCLUDED = 0x10 | 0x20 | 0x40 | 0x80 | 0x100

# A mappable heap that holds this share of the device's memory is resizable BAR; a 256 MiB window is not.
_WHOLE = 0.9


@dataclass(frozen=True)
class MemoryPlan:
    """Memory type indices by purpose.

    device: for tensors, in the order to try (more than one where an integrated GPU splits its memory over
    heaps). upload: written by the host, read by copies. download: written by copies, read by the host (cached
    if possible). arguments: argument blocks, written by the host and read by shaders.
    """

    device: tuple[int, ...]
    upload: int
    download: int
    arguments: int


def plan(info: DeviceInfo, allowed: int = 0xFFFFFFFF) -> MemoryPlan:
    """The plan for a device. allowed: bit mask of the types that the driver accepts for our buffers.

    Raises:
        UnsupportedError: no device-local or no host-visible coherent type (Vulkan promises both).
    """
    types = {
        index: kind
        for index, kind in enumerate(info.memory_types)
        if allowed >> index & 1 and not kind.flags & _EXCLUDED
    }

    def having(flags: int, without: int = 0) -> list[int]:
        return [i for i, t in types.items() if t.flags & flags == flags and not t.flags & without]

    mappable = having(_MAPPABLE)
    local = having(DEVICE_LOCAL)
    if not mappable or not local:
        raise UnsupportedError(f"{info} has no usable memory type for storage buffers: {info.memory_types}")
    heap_size = {i: info.heaps[t.heap].size for i, t in types.items()}
    largest = max(heap_size[i] for i in local)

    def flags(index: int) -> int:
        return types[index].flags

    if info.kind in ("integrated", "cpu"):
        # One physical memory: mapped types first, cached before write-combined, then whatever heaps there
        # are. A small carve-out (AMD APUs) comes before the large host heap only if it is not small.
        def rank(i: int) -> tuple[bool, bool, bool, int]:
            small = heap_size[i] < _WHOLE * max(heap_size[j] for j in mappable)
            return (
                flags(i) & _MAPPABLE != _MAPPABLE,
                small,
                not flags(i) & DEVICE_LOCAL,
                not flags(i) & HOST_CACHED,
            )

        device = sorted({*local, *mappable}, key=rank)
    else:
        # Resizable BAR first: the host then writes straight into device memory. Never fall back to host
        # memory: a kernel that reads over the bus is slower than an error is annoying.
        whole = [i for i in local if heap_size[i] >= _WHOLE * largest]
        device = sorted(whole, key=lambda i: flags(i) & _MAPPABLE != _MAPPABLE)

    def first(*preferences: list[int]) -> int:
        return next(candidates[0] for candidates in preferences if candidates)

    return MemoryPlan(
        device=tuple(device),
        upload=first(having(_MAPPABLE, DEVICE_LOCAL | HOST_CACHED), having(_MAPPABLE, DEVICE_LOCAL), mappable),
        download=first(
            having(_MAPPABLE | HOST_CACHED, DEVICE_LOCAL), having(_MAPPABLE | HOST_CACHED), having(_MAPPABLE)
        ),
        arguments=first(having(_MAPPABLE | DEVICE_LOCAL), mappable),
    )
