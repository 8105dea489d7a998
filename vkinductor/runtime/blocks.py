"""Large pieces of device memory: a VkBuffer bound to its own VkDeviceMemory, with a device address and maybe
a mapping.

Owns creating and destroying them. Dividing them up is `arena`'s, and who needs one is `memory`'s and
`staging`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vkinductor.runtime.errors import VulkanOutOfMemoryError, check, result_name
from vkinductor.runtime.memory_types import HOST_CACHED, HOST_COHERENT, HOST_VISIBLE, MemoryPlan, plan

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

# Every address handed out is a multiple of this: enough for any vector load and any copy alignment we know
# of.
ALIGNMENT = 256

_USAGE = 0x1 | 0x2 | 0x20 | 0x100 | 0x20000  # transfer source and destination, storage, indirect, device address
_ALLOCATE_DEVICE_ADDRESS = 0x2


@dataclass(eq=False)
class Block:
    """One buffer. Addresses are biased (see `memory.Allocator.bias`); offsets in the buffer start at `skew`.

    base, end: the half-open usable address range, `ALIGNMENT`-aligned at base. host: the host pointer of
    `base`, or 0 when unmapped. cached: whether the host may read through that pointer at a reasonable speed.
    """

    buffer: Any
    memory: Any
    base: int
    end: int
    skew: int
    host: int
    cached: bool
    memory_type: int

    @property
    def nbytes(self) -> int:
        """Usable bytes."""
        return self.end - self.base


class BlockFactory:
    """Creates and destroys blocks of one device."""

    def __init__(self, device: Device, bias: int) -> None:
        self._device = device
        self._ffi, self._vk = device.ffi, device.vk
        self._bias = bias
        self.types = device.info.memory_types
        self.map_tensors = device.info.features.host_mapping
        self.plan: MemoryPlan = plan(device.info, self._allowed_types())
        limits = device.info.limits
        # Usable bytes of the largest possible block: the base may have to be aligned inside the buffer. The
        # allocation limit is not a bound (NVIDIA states 4 GiB and gives 9): the driver may be asked for more.
        largest = min(limits.max_buffer_size, self.heap_bytes)
        self.max_block = largest // ALIGNMENT * ALIGNMENT - ALIGNMENT

    def _buffer(self, nbytes: int) -> Any:
        info = self._ffi.new("VkBufferCreateInfo *")
        info.sType = 12
        info.size = nbytes
        info.usage = _USAGE
        out = self._ffi.new("VkBuffer *")
        check(
            self._vk.vkCreateBuffer(self._device.handle, info, self._ffi.NULL, out),
            f"a buffer of {nbytes} bytes",
        )
        return out[0]

    def _requirements(self, buffer: Any) -> Any:
        out = self._ffi.new("VkMemoryRequirements *")
        self._vk.vkGetBufferMemoryRequirements(self._device.handle, buffer, out)
        return out

    def _allowed_types(self) -> int:
        buffer = self._buffer(1 << 16)
        allowed = self._requirements(buffer).memoryTypeBits
        self._vk.vkDestroyBuffer(self._device.handle, buffer, self._ffi.NULL)
        return int(allowed)

    def create(self, nbytes: int, memory_type: int, mapped: bool = True) -> Block:
        """A block of `nbytes` usable bytes in this memory type, mapped if that is wanted and possible.

        Raises:
            VulkanOutOfMemoryError: the device's limits or its free memory do not allow it.
        """
        ffi, vk, handle = self._ffi, self._vk, self._device.handle
        if nbytes > self.max_block:
            raise VulkanOutOfMemoryError(
                f"{nbytes} bytes in one allocation exceed the device's limit of {self.max_block} bytes: "
                "split the tensor, or use a smaller batch"
            )
        buffer = self._buffer(nbytes + ALIGNMENT)  # room to align its base
        memory = None
        try:
            requirements = self._requirements(buffer)
            flags = ffi.new("VkMemoryAllocateFlagsInfo *")
            flags.sType = 1000060000
            flags.flags = _ALLOCATE_DEVICE_ADDRESS
            info = ffi.new("VkMemoryAllocateInfo *")
            info.sType = 5
            info.pNext = flags
            info.allocationSize = requirements.size
            info.memoryTypeIndex = memory_type
            out = ffi.new("VkDeviceMemory *")
            result = vk.vkAllocateMemory(handle, info, ffi.NULL, out)
            if result < 0:
                raise VulkanOutOfMemoryError(f"the driver refused a block of {nbytes} bytes: {result_name(result)}")
            memory = out[0]
            check(vk.vkBindBufferMemory(handle, buffer, memory, 0), "vkBindBufferMemory")
            return self._finish(buffer, memory, nbytes, int(requirements.size), memory_type, mapped)
        except BaseException:
            vk.vkDestroyBuffer(handle, buffer, ffi.NULL)
            if memory is not None:
                vk.vkFreeMemory(handle, memory, ffi.NULL)
            raise

    def _finish(self, buffer: Any, memory: Any, nbytes: int, size: int, memory_type: int, mapped: bool) -> Block:
        ffi, vk, handle = self._ffi, self._vk, self._device.handle
        info = ffi.new("VkBufferDeviceAddressInfo *")
        info.sType = 1000244001
        info.buffer = buffer
        address = int(vk.vkGetBufferDeviceAddress(handle, info))
        skew = -address % ALIGNMENT
        flags = self.types[memory_type].flags
        host = 0
        if mapped and flags & HOST_VISIBLE and flags & HOST_COHERENT:
            pointer = ffi.new("void **")
            check(vk.vkMapMemory(handle, memory, 0, size, 0, pointer), f"mapping a block of {size} bytes")
            host = int(ffi.cast("uintptr_t", pointer[0])) + skew
        base = address + skew + self._bias
        return Block(buffer, memory, base, base + nbytes, skew, host, bool(flags & HOST_CACHED), memory_type)

    def destroy(self, block: Block) -> None:
        """Free a block; the device must no longer use it."""
        self._vk.vkDestroyBuffer(self._device.handle, block.buffer, self._ffi.NULL)
        self._vk.vkFreeMemory(self._device.handle, block.memory, self._ffi.NULL)

    @property
    def heap_bytes(self) -> int:
        """Size of the heap that tensors come from first."""
        info = self._device.info
        return info.heaps[self.types[self.plan.device[0]].heap].size
