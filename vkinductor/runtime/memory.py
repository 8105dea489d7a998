"""The allocator of device memory for tensors: size classes over large blocks, by address.

Owns the live and free ranges. Blocks come from `blocks`, dividing them is `arena`'s, staging memory is
`staging`'s. Freed memory is reusable at once: commands run in order, and the stream finds hazards by address
range.

Poison mode: every address handed out is the device address plus `Allocator.bias`, which no CPU can
dereference. All of the runtime speaks in such addresses; `abi.ArgumentLayout.packer` takes the bias off on
the way into a shader.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vkinductor.runtime.arena import Arena
from vkinductor.runtime.blocks import ALIGNMENT, Block, BlockFactory
from vkinductor.runtime.errors import VulkanError, VulkanOutOfMemoryError
from vkinductor.runtime.stats import counters

# Not canonical on x86-64 or AArch64, and positive as a signed 64-bit integer.
POISON_BIAS = 1 << 62

# Ranges up to this size share small blocks and wait in bins for a taker of the same class; larger ones merge
# at once.
SMALL = 1 << 20
SMALL_BLOCK = 8 << 20

# Blocks for larger ranges start here and double: few blocks on a large device, little waste on a small one.
FIRST_LARGE_BLOCK = 32 << 20
LAST_LARGE_BLOCK = 512 << 20

# Size classes are 1/8 of a power of two apart, but never coarser than this.
MAX_STEP = 2 << 20

# How long `free` waits for the lock before it leaves the address to the next caller.
_FREE_PATIENCE_S = 0.05

# A dry size class asks for a sweep after this many allocations or bytes since the last one, and at least a
# quarter of what lives: a sweep costs time in proportion to what lives.
SWEEP_ALLOCATIONS = 64
SWEEP_BYTES = 16 << 20


def round_size(nbytes: int) -> int:
    """The size class of a request, in bytes: a multiple of 256 and at least 256."""
    if nbytes <= 2048:
        return (nbytes + 255) & ~255 or 256
    step = min(1 << ((nbytes - 1).bit_length() - 4), MAX_STEP)
    return (nbytes + step - 1) & -step


@dataclass(frozen=True)
class MemoryStats:
    """Bytes and counts of one device. allocated: in live ranges, rounded to size classes. reserved: in
    blocks.
    """

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocations: int  # live ranges
    blocks: int
    heap_bytes: int  # size of the heap that blocks come from first
    largest_free_bytes: int  # largest free range inside the blocks


class Allocator:
    """Device memory by address. Thread-safe. Addresses are multiples of 256 and carry `bias`."""

    def __init__(self, factory: BlockFactory, bias: int = 0) -> None:
        self.bias = bias
        # Called, without the lock, when a size class runs dry (now and then) and before memory is given up
        # on: frees what nobody refers to any more.
        self.on_pressure: Callable[[], None] | None = None
        # Called, with the lock, before blocks go back to the driver: waits until the device uses none of
        # them. The stream never allocates while it holds its own lock, so this order of locks is the only
        # one.
        self.synchronize: Callable[[], None] | None = None
        self._factory = factory
        self._lock = threading.RLock()
        self._bins: dict[int, list[int]] = {}
        self._live: dict[int, int] = {}
        self._small, self._large = Arena(), Arena()
        self._blocks: dict[int, Block] = {}
        # Replaced as a whole, so that `block_of` needs no lock.
        self._index: tuple[list[int], list[Block]] = ([], [])
        self._large_block = FIRST_LARGE_BLOCK
        self._busy = False  # an arena is being changed
        self._deferred: list[int] = []  # to be freed as soon as the lock and the arenas allow
        self._allocated = self._reserved = self._peak_allocated = self._peak_reserved = 0
        self._since_sweep = self._bytes_since_sweep = 0
        self._closed = False
        self._pressed = False  # see `short`

    def allocate(self, nbytes: int) -> int:
        """The address of `nbytes` fresh bytes (contents undefined). 0 bytes give a valid, unique address too.

        Raises:
            VulkanOutOfMemoryError: does not fit after a sweep and one retry; names the sizes.
        """
        if self._pressed and self.on_pressure is not None:
            self.on_pressure()
        size = (nbytes + 255) & ~255 or 256 if nbytes <= 2048 else round_size(nbytes)
        with self._lock:
            address = self._pop(size)
        if address is None:
            address = self._allocate_slowly(size, nbytes)
        counters.allocations += 1
        return address

    @contextmanager
    def short(self) -> Iterator[None]:
        """Inside, each allocation asks for a sweep (`on_pressure`) first, as one that finds no memory does: for checks
        that nothing is freed that is still needed."""
        self._pressed = True
        try:
            yield
        finally:
            self._pressed = False

    def free(self, address: int) -> None:
        """Give an address back; later commands may use the memory at once. After `close` this does nothing.

        Raises:
            VulkanError: the address is not one that is allocated.
        """
        # Whoever holds the lock may wait for the stream's, which a finalizer's thread may hold: never wait
        # for long.
        if not self._lock.acquire(timeout=_FREE_PATIENCE_S):
            self._deferred.append(address)
            return
        try:
            if self._busy:  # a finalizer interrupted this very thread inside `_pop`: finish that first
                self._deferred.append(address)
            else:
                self._free(address)
        finally:
            self._lock.release()

    def _free(self, address: int) -> None:
        size = self._live.pop(address, 0)
        if not size:
            if self._closed:
                return
            raise VulkanError(f"free of {address:#x}, which is not allocated (freed twice?)")
        self._allocated -= size
        if size > SMALL:
            self._busy = True
            self._large.give(address, size)
            self._busy = False
            return
        bin_ = self._bins.get(size)
        if bin_ is None:
            bin_ = self._bins[size] = []
        bin_.append(address)

    def size_of(self, address: int) -> int:
        """Usable bytes of a live allocation: its size class.

        Raises:
            VulkanError: the address is not one that is allocated.
        """
        size = self._live.get(address)
        if size is None:
            raise VulkanError(f"{address:#x} is not the address of a live allocation")
        return size

    def block_of(self, address: int) -> Block:
        """The block that holds an address (interior ones too).

        Raises:
            VulkanError: no block holds it; it is no device address, or its memory was released.
        """
        bases, blocks = self._index
        i = bisect_right(bases, address) - 1
        if i < 0 or address >= blocks[i].end:
            raise VulkanError(f"{address:#x} is no address of this device's memory")
        return blocks[i]

    def find(self, address: int) -> tuple[Any, int]:
        """(VkBuffer, byte offset) of an address (interior ones too).

        Raises:
            VulkanError: no block holds it.
        """
        block = self.block_of(address)
        return block.buffer, address - block.base + block.skew

    def host_view(self, address: int, nbytes: int) -> int | None:
        """The host pointer of a range when its memory is mapped, else None.

        Writing through it is fast; reading is fast only where `block_of(address).cached`. The caller orders
        it with the device's work.
        """
        block = self.block_of(address)
        if not block.host or address + nbytes > block.end:
            return None
        return block.host + address - block.base

    def stats(self) -> MemoryStats:
        """Current and peak use."""
        with self._lock:
            self._run_deferred()
            return MemoryStats(
                allocated_bytes=self._allocated,
                reserved_bytes=self._reserved,
                peak_allocated_bytes=self._peak_allocated,
                peak_reserved_bytes=self._peak_reserved,
                allocations=len(self._live),
                blocks=len(self._blocks),
                heap_bytes=self._factory.heap_bytes,
                largest_free_bytes=max(self._small.largest(), self._large.largest()),
            )

    def reset_peaks(self) -> None:
        """Let the peaks start again from the current use."""
        with self._lock:
            self._peak_allocated, self._peak_reserved = self._allocated, self._reserved

    def empty_cache(self) -> int:
        """Give blocks that hold nothing live back to the driver, after waiting for the device; returns their
        bytes.
        """
        if self.on_pressure is not None:
            self.on_pressure()
        return self._release_unused()

    def close(self) -> None:
        """Destroy every block. The device must be idle; addresses still out become invalid."""
        with self._lock:
            for block in self._blocks.values():
                self._factory.destroy(block)
            self._blocks.clear()
            self._bins.clear()
            self._live.clear()
            self._small, self._large = Arena(), Arena()
            self._index = ([], [])
            self._allocated = self._reserved = 0
            self._closed = True

    def abandon(self) -> None:
        """After a fork, in the child: forget the lock (its holder is gone), never touch the driver again."""
        self._lock = threading.RLock()
        self._closed = True

    # The slow path.

    def _pop(self, size: int) -> int | None:
        """A free range of this class, entered as live, or None. The lock is held."""
        bin_ = self._bins.get(size)
        if bin_:
            address: int | None = bin_.pop()
        else:
            self._busy = True
            address = (self._small if size <= SMALL else self._large).take(size)
            self._busy = False
        if address is not None:
            self._live[address] = size
            self._since_sweep += 1
            self._bytes_since_sweep += size
            allocated = self._allocated = self._allocated + size
            if allocated > self._peak_allocated:
                self._peak_allocated = allocated
        if self._deferred:
            self._run_deferred()
        return address

    def _run_deferred(self) -> None:
        while self._deferred:
            self._free(self._deferred.pop())

    def _allocate_slowly(self, size: int, nbytes: int) -> int:
        if self._closed:
            raise VulkanError("the device was closed: nothing can be allocated on it any more")
        if self._sweep_is_due(size):
            self._sweep()
            with self._lock:
                address = self._pop(size)
            if address is not None:
                return address
        try:
            return self._from_new_block(size)
        except VulkanOutOfMemoryError as first:
            self._sweep()
            with self._lock:
                self._flush_bins()
                address = self._pop(size)
            if address is not None:
                return address
            self._release_unused()
            try:
                return self._from_new_block(size)
            except VulkanOutOfMemoryError as error:
                raise VulkanOutOfMemoryError(self._explain(nbytes, error)) from first

    def _sweep_is_due(self, size: int) -> bool:
        return (
            size > SMALL  # the next step may be a new block of many megabytes
            or self._since_sweep > max(SWEEP_ALLOCATIONS, len(self._live) // 4)
            or self._bytes_since_sweep > max(SWEEP_BYTES, self._allocated // 4)
        )

    def _sweep(self) -> None:
        self._since_sweep = self._bytes_since_sweep = 0
        if self.on_pressure is not None:
            self.on_pressure()

    def _from_new_block(self, size: int) -> int:
        with self._lock:
            # Another thread may have brought what is needed; small ranges in other bins may add up to it.
            address = self._pop(size)
            if address is None and size <= SMALL and self._binned() > SMALL_BLOCK:
                self._flush_bins()
                address = self._pop(size)
            if address is not None:
                return address
            self._add_block(size)
            address = self._pop(size)
            assert address is not None
            return address

    def _binned(self) -> int:
        return sum(size * len(bin_) for size, bin_ in self._bins.items())

    def _add_block(self, size: int) -> None:
        small = size <= SMALL
        wanted = SMALL_BLOCK if small else max(size, self._large_block)
        limit = max(self._factory.max_block, size)
        for nbytes in dict.fromkeys((min(wanted, limit), size)):
            for position, memory_type in enumerate(self._factory.plan.device):
                last = position == len(self._factory.plan.device) - 1 and nbytes == size
                try:
                    block = self._factory.create(nbytes, memory_type, self._factory.map_tensors)
                except VulkanOutOfMemoryError:
                    if last:
                        raise
                    continue
                if not small and nbytes >= self._large_block:
                    self._large_block = min(self._large_block * 2, LAST_LARGE_BLOCK)
                self._enter(block, self._small if small else self._large)
                return

    def _enter(self, block: Block, arena: Arena) -> None:
        self._blocks[block.base] = block
        bases = list(self._index[0])
        insort(bases, block.base)
        self._index = (bases, [self._blocks[base] for base in bases])
        arena.add_block(block.base, block.nbytes // ALIGNMENT * ALIGNMENT)
        self._reserved += block.nbytes
        self._peak_reserved = max(self._peak_reserved, self._reserved)

    def _flush_bins(self) -> None:
        self._busy = True
        for size, bin_ in self._bins.items():
            for address in bin_:
                self._small.give(address, size)
        self._bins.clear()
        self._busy = False
        self._run_deferred()

    def _release_unused(self) -> int:
        released = 0
        with self._lock:
            if self.synchronize is not None:
                self.synchronize()
            self._flush_bins()
            self._busy = True
            for arena in (self._small, self._large):
                for base in arena.unused_blocks():
                    arena.remove_block(base)
                    block = self._blocks.pop(base)
                    released += block.nbytes
                    self._factory.destroy(block)
            self._busy = False
            bases = sorted(self._blocks)
            self._index = (bases, [self._blocks[base] for base in bases])
            self._reserved -= released
            if not self._blocks:
                self._large_block = FIRST_LARGE_BLOCK
            self._run_deferred()
        return released

    def _explain(self, nbytes: int, error: VulkanOutOfMemoryError) -> str:
        stats = self.stats()
        return (
            f"out of device memory: {nbytes} bytes wanted; {stats.allocated_bytes} bytes are in "
            f"{stats.allocations} live allocations, {stats.reserved_bytes} bytes reserved in {stats.blocks} "
            f"blocks (largest free range {stats.largest_free_bytes}), the heap has {stats.heap_bytes}. "
            f"{error}. Use a smaller batch, or drop references to tensors"
        )
