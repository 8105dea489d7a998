"""What the recorded programs of a device share: a command pool, mapped memory for argument blocks, and one scratch
range for the intermediates of all of them (they run in order, so only one needs it at a time).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from vkinductor.runtime.arena import Arena
from vkinductor.runtime.blocks import ALIGNMENT, Block
from vkinductor.runtime.errors import check

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

_BLOCK_BYTES = 1 << 20
_FIRST_SCRATCH = 1 << 20
_SIMULTANEOUS_USE = 0x4


class Arguments(NamedTuple):
    """Mapped memory: its buffer and byte offset there, host pointer, (biased) device address, size."""

    block: Block
    offset: int
    host: int
    address: int
    nbytes: int


class SharedResources:
    """Used with the stream's lock held, but for `retired`, to which any thread may append at any time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._arena = Arena()
        self._blocks: dict[int, Block] = {}
        self._pool: Any = None
        # (value of the last submission, command buffers, argument memory): given back once it has finished.
        self.retired: deque[tuple[int, tuple[Any, ...], Arguments | None]] = deque()
        self.scratch_address = 0
        self.scratch_bytes = 0

    def begin_secondary(self) -> Any:
        """A new secondary command buffer that is being recorded, for any number of submissions at a time."""
        inheritance = self._device.ffi.new("VkCommandBufferInheritanceInfo *")
        inheritance.sType = 41
        return self._begin(1, inheritance)

    def begin_primary(self) -> Any:
        """The same of a primary one."""
        return self._begin(0, self._device.ffi.NULL)

    def _begin(self, level: int, inheritance: Any) -> Any:
        device = self._device
        ffi, vk = device.ffi, device.vk
        if self._pool is None:
            info = ffi.new("VkCommandPoolCreateInfo *")
            info.sType, info.queueFamilyIndex = 39, device.queue_family
            pool = ffi.new("VkCommandPool *")
            check(vk.vkCreateCommandPool(device.handle, info, ffi.NULL, pool), "vkCreateCommandPool")
            self._pool = pool[0]
        allocate = ffi.new("VkCommandBufferAllocateInfo *")
        allocate.sType, allocate.commandPool, allocate.level, allocate.commandBufferCount = 40, self._pool, level, 1
        command = ffi.new("VkCommandBuffer *")
        check(vk.vkAllocateCommandBuffers(device.handle, allocate, command), "vkAllocateCommandBuffers")
        begin = ffi.new("VkCommandBufferBeginInfo *")
        begin.sType, begin.flags, begin.pInheritanceInfo = 42, _SIMULTANEOUS_USE, inheritance
        check(vk.vkBeginCommandBuffer(command[0], begin), "vkBeginCommandBuffer")
        return command[0]

    def arguments(self, nbytes: int) -> Arguments:
        """Mapped, device-readable memory of at least `nbytes`. Raises `VulkanOutOfMemoryError`."""
        size = (nbytes + ALIGNMENT - 1) & -ALIGNMENT
        base = self._arena.take(size)
        if base is None:
            factory = self._device.blocks
            block = factory.create(max(size, _BLOCK_BYTES), factory.plan.arguments)
            self._blocks[block.base] = block
            self._arena.add_block(block.base, block.nbytes // ALIGNMENT * ALIGNMENT)
            base = self._arena.take(size)
            assert base is not None
        block = next(b for b in self._blocks.values() if b.base <= base < b.end)
        return Arguments(block, base - block.base + block.skew, block.host + base - block.base, base, size)

    def collect(self, completed: int) -> None:
        """Take back what was retired and is no longer in flight."""
        ffi, vk, handle = self._device.ffi, self._device.vk, self._device.handle
        for _ in range(len(self.retired)):
            value, commands, arguments = self.retired.popleft()
            if value > completed:
                self.retired.append((value, commands, arguments))
                continue
            if commands:
                vk.vkFreeCommandBuffers(handle, self._pool, len(commands), ffi.new("VkCommandBuffer[]", commands))
            if arguments is not None:
                self._arena.give(arguments.address, arguments.nbytes)

    def close(self) -> None:
        """Destroy everything; the device must be idle or lost. The scratch range goes with the allocator."""
        device = self._device
        if self._pool is not None:
            device.vk.vkDestroyCommandPool(device.handle, self._pool, device.ffi.NULL)
            self._pool = None
        for block in self._blocks.values():
            device.blocks.destroy(block)
        self._blocks.clear()
        self.retired.clear()
        self._arena = Arena()


def grow_scratch(device: Device, nbytes: int) -> None:
    """Make the scratch range at least `nbytes` large. To be called without the stream's lock (it allocates).

    Raises:
        VulkanOutOfMemoryError: the range stays as it was.
    """
    shared = device.stream.shared
    if nbytes <= shared.scratch_bytes:
        return
    wanted = max(_FIRST_SCRATCH, nbytes)
    address = device.memory.allocate(wanted)
    with device.stream.lock:
        if wanted > shared.scratch_bytes:
            shared.scratch_address, address = address, shared.scratch_address
            shared.scratch_bytes = wanted
    if address:
        device.memory.free(address)


def release_scratch(device: Device) -> None:
    """Give the scratch range back to the allocator; programs that need it take a new one."""
    shared = device.stream.shared
    with device.stream.lock:
        address, shared.scratch_address, shared.scratch_bytes = shared.scratch_address, 0, 0
    if address:
        device.memory.free(address)
