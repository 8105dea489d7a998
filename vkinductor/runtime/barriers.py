"""Memory barriers by source mask and destination stage, prepared once so that recording one is a single call.

The masks are those of `hazards`. Exact masks matter: on an H100 a compute -> compute barrier with storage
masks costs 2.6 us, one with ALL_COMMANDS and MEMORY masks 6 us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkinductor.runtime.hazards import COMPUTE_READ, COMPUTE_WRITE, TRANSFER_READ, TRANSFER_WRITE

if TYPE_CHECKING:
    from vkinductor.runtime.functions import Functions

# Destination stages.
TO_COMPUTE = 0
TO_TRANSFER = 1
TO_HOST = 2
TO_COMPUTE_AND_TRANSFER = 3

ALL_SOURCES = COMPUTE_WRITE | COMPUTE_READ | TRANSFER_WRITE | TRANSFER_READ

_STAGE_COMPUTE, _STAGE_TRANSFER, _STAGE_HOST = 0x800, 0x1000, 0x4000
_SHADER_READ, _SHADER_WRITE = 0x20, 0x40
_STORAGE_READ2, _STORAGE_WRITE2 = (
    1 << 33,
    1 << 34,
)  # synchronization2 tells storage from other shader accesses
_TRANSFER_READ, _TRANSFER_WRITE = 0x800, 0x1000
_HOST_READ = 0x2000


class Barriers:
    """Records barriers into command buffers."""

    def __init__(self, ffi: Any, vk: Functions, synchronization2: bool) -> None:
        self._ffi, self._vk = ffi, vk
        self._two = vk.vkCmdPipelineBarrier2 if synchronization2 else None
        self._prepared: dict[tuple[int, int], Any] = {}
        self._keep: list[Any] = []

    def record(self, command: Any, mask: int, to: int) -> None:
        """Make commands of stage `to` wait for the earlier accesses in `mask`, whose writes become visible to
        it.
        """
        prepared = self._prepared.get((mask, to))
        if prepared is None:
            prepared = self._prepared[mask, to] = self._prepare(mask, to)
        if self._two is not None:
            self._two(command, prepared)
        else:
            source, destination, barrier = prepared
            null = self._ffi.NULL
            self._vk.vkCmdPipelineBarrier(command, source, destination, 0, 1, barrier, 0, null, 0, null)

    def _prepare(self, mask: int, to: int) -> Any:
        two = self._two is not None
        read, write = (_STORAGE_READ2, _STORAGE_WRITE2) if two else (_SHADER_READ, _SHADER_WRITE)
        source = (_STAGE_COMPUTE if mask & (COMPUTE_WRITE | COMPUTE_READ) else 0) | (
            _STAGE_TRANSFER if mask & (TRANSFER_WRITE | TRANSFER_READ) else 0
        )
        source_access = (write if mask & COMPUTE_WRITE else 0) | (_TRANSFER_WRITE if mask & TRANSFER_WRITE else 0)
        stage, access = {
            TO_COMPUTE: (_STAGE_COMPUTE, read | write),
            TO_TRANSFER: (_STAGE_TRANSFER, _TRANSFER_READ | _TRANSFER_WRITE),
            TO_HOST: (_STAGE_HOST, _HOST_READ),
            TO_COMPUTE_AND_TRANSFER: (
                _STAGE_COMPUTE | _STAGE_TRANSFER,
                read | write | _TRANSFER_READ | _TRANSFER_WRITE,
            ),
        }[to]
        barrier = self._ffi.new("VkMemoryBarrier2 *" if two else "VkMemoryBarrier *")
        barrier.sType = 1000314000 if two else 46
        barrier.srcAccessMask, barrier.dstAccessMask = source_access, access
        self._keep.append(barrier)
        if not two:
            return source, stage, barrier
        barrier.srcStageMask, barrier.dstStageMask = source, stage
        info = self._ffi.new("VkDependencyInfo *")
        info.sType = 1000314003
        info.memoryBarrierCount, info.pMemoryBarriers = 1, barrier
        return info
