"""The stream: dispatches and transfers in order on one queue, barriers only where two really conflict.

Owns the public operations. Recording, order and waiting are `recorder`'s, staging memory is `staging`'s.

Thread-safe. It never allocates tensor memory while it holds its lock (see `memory.Allocator.synchronize`).
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

from vkinductor.runtime import copy_kernel
from vkinductor.runtime.barriers import TO_COMPUTE
from vkinductor.runtime.errors import UnsupportedError, VulkanError
from vkinductor.runtime.grid import fold
from vkinductor.runtime.hazards import AFTER_PROGRAM, Ranges
from vkinductor.runtime.recorder import Recorder
from vkinductor.runtime.staging import HostRing
from vkinductor.runtime.stats import counters

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.pipeline import Pipeline
    from vkinductor.runtime.replay.program import Instance

# Host memory rings: (bytes of a chunk, chunks).
_ARGUMENT_RING = (256 << 10, 16)
_UPLOAD_RING = (8 << 20, 4)
_DOWNLOAD_RING = (8 << 20, 3)

# Reading uncached mapped memory costs about 1 us for each few bytes (H100); a staged copy costs a submit and
# a wait, about 50 us.
_DIRECT_READ_BYTES = 256

_EVERYTHING = ((0, 1 << 64),)

_BIND_COMPUTE = 1
_STAGE_COMPUTE = 0x20


class Stream(Recorder):
    """One in-order queue. Ranges are (address, nbytes); callers must not change the sequences afterwards."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        vk, limits = device.vk, device.info.limits
        self.bias = device.memory.bias
        self._device = device
        self._bind, self._push, self._dispatch = vk.vkCmdBindPipeline, vk.vkCmdPushConstants, vk.vkCmdDispatch
        self._pipelines, self._limits, self._kind = device.pipelines, limits, device.info.kind
        self._max_groups = limits.max_workgroup_count
        self._is_cpu = self._kind == "cpu"
        self._push_data = device.ffi.new("char[]", max(limits.max_push_constants, 128))
        self._push_view = device.ffi.buffer(self._push_data)
        self._region = device.ffi.new("VkBufferCopy *")
        plan, numbers = device.blocks.plan, self.submissions

        def ring(memory_type: int, chunk_bytes: int, chunks: int) -> HostRing:
            next_value, completed = numbers.next_value, numbers.completed
            return HostRing(device.blocks, memory_type, chunk_bytes, chunks, next_value, completed, self._wait)

        self._arguments = ring(plan.arguments, *_ARGUMENT_RING)
        self._uploads = ring(plan.upload, *_UPLOAD_RING)
        self._downloads = ring(plan.download, *_DOWNLOAD_RING)

    # Compute.

    def dispatch(
        self,
        pipeline: Pipeline,
        groups: tuple[int, int, int],
        args: bytes,
        reads: Ranges,
        writes: Ranges,
        cost_bytes: int = 0,
        cost_flops: int = 0,
    ) -> None:
        """Run `pipeline` on `groups` workgroups with packed arguments (`pipeline.pack(...)`).

        reads, writes: the address ranges it touches; an in-place range is in both. cost_bytes, cost_flops:
        estimates, which bound a submit. No groups is no work.

        Raises:
            UnsupportedError: more groups than the device takes (fold them, see `grid`).
            DeviceLostError: the device was lost, now or before.
        """
        x, y, z = groups
        if self.captures.by_thread and (capture := self.captures.current) is not None:
            capture.dispatch(pipeline, groups, args, reads, writes)
            return
        if not (x and y and z):
            return
        max_x, max_y, max_z = self._max_groups
        if x > max_x or y > max_y or z > max_z:
            raise UnsupportedError(
                f"kernel {pipeline.source.name!r}: {x} x {y} x {z} workgroups exceed the device's "
                f"{max_x} x {max_y} x {max_z}: fold them (runtime.grid.fold)"
            )
        with self.lock:
            if not pipeline.inline_args:
                args = self._argument_block(args)
            slot = self.submissions.current
            if slot is None or not slot.recording:
                slot = self._begin()
            command = slot.command
            mask = self._hazards.compute(reads, writes)
            if mask:
                self.barriers.record(command, mask, TO_COMPUTE)
                counters.barriers += 1
            if pipeline is not self._bound:
                self._bind(command, _BIND_COMPUTE, pipeline.handle)
                self._bound = pipeline
            nbytes = len(args)
            if nbytes:
                self._push_view[0:nbytes] = args
                self._push(command, pipeline.layout, _STAGE_COMPUTE, 0, nbytes, self._push_data)
            tracer = self.tracer
            if tracer is None:
                self._dispatch(command, x, y, z)
            else:
                tracer.before(command, pipeline.source.name)
                self._dispatch(command, x, y, z)
                tracer.after(command)
            journal = slot.journal
            journal.append((pipeline.source.name, reads, writes))
            counters.dispatches += 1
            self._bytes += cost_bytes
            self._flops += cost_flops
            recorded = len(journal) + self._replayed
            if recorded >= self._submit_at or self._bytes >= self._max_bytes or self._flops >= self._max_flops:
                self._submit()

    def barrier(self) -> None:
        """Have the next dispatch wait for all before it, whatever they touch: for measurements of work that waits."""
        self.captures.refuse("a barrier")
        with self.lock:
            self._hazards.compute((), _EVERYTHING)

    def _argument_block(self, args: bytes) -> bytes:
        if not args:
            return args
        piece = self._arguments.take(len(args))
        ctypes.memmove(piece.host, args, len(args))
        return struct.pack("<Q", piece.address - self.bias)

    def replay(self, instance: Instance, name: str, dispatches: int, barriers: int) -> None:
        """Run a recorded program (see `replay.program`), which is filled in. The lock is held."""
        entry = (name, instance.reads, instance.writes)
        left, mask = dispatches, self._hazards.program()
        for number in range(len(instance.commands)):
            here = min(left, self.program_dispatches or left)
            instance.value = self._run_program(instance, number, here, entry, mask)
            left, mask = left - here, AFTER_PROGRAM
        counters.replays += 1
        counters.dispatches += dispatches
        counters.barriers += barriers

    # Transfers.

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Copy between device addresses; the ranges may overlap (the result is as if src had been read
        first).
        """
        if nbytes <= 0 or dst == src:
            return
        self.captures.refuse("a copy")
        with self.lock:
            if self._is_cpu and self._unused(dst, nbytes) and self._unused(src, nbytes, by_writes_only=True):
                to, source = self._memory.host_view(dst, nbytes), self._memory.host_view(src, nbytes)
                if to and source:
                    ctypes.memmove(to, source, nbytes)
                    return
        if dst < src + nbytes and src < dst + nbytes:
            # vkCmdCopyBuffer forbids overlap, so the bytes take a detour.
            detour = self._memory.allocate(nbytes)
            self._copy(detour, src, nbytes)
            self._copy(dst, detour, nbytes)
            self._memory.free(detour)
            return
        self._copy(dst, src, nbytes)

    def _copy(self, dst: int, src: int, nbytes: int) -> None:
        """Copy between ranges that do not overlap."""
        self._check_range(src, nbytes)
        self._check_range(dst, nbytes)
        if copy_kernel.suits(dst, src, nbytes, self._kind):
            whole = nbytes - nbytes % copy_kernel.VECTOR
            self._copy_by_kernel(dst, src, whole)
            dst, src, nbytes = dst + whole, src + whole, nbytes - whole
            if not nbytes:
                return
        source, source_offset = self._memory.find(src)
        target, target_offset = self._memory.find(dst)
        with self.lock:
            command = self._transfer("copy", ((src, nbytes),), ((dst, nbytes),))
            self._record_copy(command, source, source_offset, target, target_offset, nbytes)
            self._after_transfer(2 * nbytes)

    def _copy_by_kernel(self, dst: int, src: int, nbytes: int) -> None:
        """Copy a multiple of 16 bytes between 16-byte aligned addresses in a dispatch."""
        pipeline = self._pipelines.get(copy_kernel.source())
        words = nbytes // copy_kernel.VECTOR
        groups = fold(-(-words // copy_kernel.LOCAL_SIZE), self._limits)
        args = pipeline.pack(words, dst, src)
        self.dispatch(pipeline, groups, args, ((src, nbytes),), ((dst, nbytes),), cost_bytes=2 * nbytes)

    def fill(self, dst: int, nbytes: int, value: int, width: int | None = None) -> None:
        """Fill a range with a repeated little-endian pattern of `width` bytes (1, 2 or 4), starting at dst.

        width None: 1 for a value under 256, else 4. Any address and length; a trailing part of the pattern is
        cut off.
        """
        if nbytes <= 0:
            return
        self.captures.refuse("a fill")
        self._check_range(dst, nbytes)
        width = width or (1 if 0 <= value < 256 else 4)
        pattern = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little") * (4 // width)
        with self.lock:
            view = self._memory.host_view(dst, nbytes)
            if view and (self._is_cpu or nbytes <= 4096) and self._unused(dst, nbytes):
                if len(set(pattern)) == 1:
                    ctypes.memset(view, pattern[0], nbytes)
                else:
                    ctypes.memmove(view, (pattern * (nbytes // 4 + 1))[:nbytes], nbytes)
                return
            # vkCmdFillBuffer wants multiples of 4; the ragged ends are copied from staging memory.
            start, end = (dst + 3) & ~3, (dst + nbytes) & ~3
            if end <= start:
                self._stage(dst, (pattern * (nbytes // 4 + 1))[:nbytes])
                return
            head = start - dst
            if head:
                self._stage(dst, pattern[:head])
            turned = pattern[head:] + pattern[:head]
            buffer, offset = self._memory.find(start)
            command = self._transfer("fill", (), ((start, end - start),))
            self._vk.vkCmdFillBuffer(command, buffer, offset, end - start, int.from_bytes(turned, "little"))
            self._after_transfer(nbytes)
            if end < dst + nbytes:
                self._stage(end, turned[: dst + nbytes - end])

    def _stage(self, dst: int, data: bytes) -> None:
        """Write a few bytes in order with other commands."""
        piece = self._uploads.take(len(data))
        ctypes.memmove(piece.host, data, len(data))
        buffer, offset = self._memory.find(dst)
        command = self._transfer("upload", (), ((dst, len(data)),))
        self._record_copy(command, piece.block.buffer, piece.offset, buffer, offset, len(data))
        self._after_transfer(len(data))

    def upload(self, dst: int, host_ptr: int, nbytes: int) -> None:
        """Copy host memory to the device. The host memory has been read when this returns."""
        if nbytes <= 0:
            return
        self.captures.refuse("an upload")
        self._check_range(dst, nbytes)
        counters.h2d_bytes += nbytes
        with self.lock:
            view = self._memory.host_view(dst, nbytes)
            if view and self._unused(dst, nbytes):
                ctypes.memmove(view, host_ptr, nbytes)
                return
            buffer, offset = self._memory.find(dst)
            for at in range(0, nbytes, self._uploads.chunk_bytes):
                size = min(self._uploads.chunk_bytes, nbytes - at)
                piece = self._uploads.take(size)
                ctypes.memmove(piece.host, host_ptr + at, size)
                command = self._transfer("upload", (), ((dst + at, size),))
                self._record_copy(command, piece.block.buffer, piece.offset, buffer, offset + at, size)
                self._after_transfer(size)
                if size == self._uploads.chunk_bytes:
                    self._submit()  # the device copies this chunk while the host fills the next one

    def mark(self) -> int:
        """Submit what is recorded, without waiting. Returns the value of that submission, for `download`."""
        self.captures.refuse("a submit")
        with self.lock:
            self._submit()
            return self.submissions.submitted

    def download(self, host_ptr: int, src: int, nbytes: int, after: int | None = None) -> None:
        """Copy device memory to the host; waits for the commands that wrote it, and only those.

        after: of a `mark`, when no command since then writes the memory. Programs are noted with all of a tensor that
        they write a part of: a reader of another part would otherwise wait for them.
        """
        if nbytes <= 0:
            return
        self.captures.refuse("a download")
        self._check_range(src, nbytes)
        counters.d2h_bytes += nbytes
        with self.lock:
            block = self._memory.block_of(src)
            if block.host and (block.cached or nbytes <= _DIRECT_READ_BYTES):
                if after is None:
                    writer = self._last_user(src, src + nbytes, by_writes_only=True)
                    after = writer.value if writer is not None else 0
                self._wait(after)
                ctypes.memmove(host_ptr, block.host + src - block.base, nbytes)
                return
            chunk = self._downloads.chunk_bytes
            waiting: tuple[int, int, int, int] | None = None  # value, host pointer, staging pointer, size
            for at in range(0, nbytes, chunk):
                size = min(chunk, nbytes - at)
                piece = self._downloads.take(size)
                command = self._transfer("download", ((src + at, size),), ())
                offset = src + at - block.base + block.skew
                self._record_copy(command, block.buffer, offset, piece.block.buffer, piece.offset, size)
                value = self.submissions.next_value()
                self._after_transfer(size)
                self._submit()
                if waiting:
                    self._take_over(*waiting)
                waiting = (value, host_ptr + at, piece.host, size)
            if waiting:
                self._take_over(*waiting)

    def read(self, src: int, nbytes: int) -> bytes:
        """A few bytes of device memory, as `download` gives them."""
        data = ctypes.create_string_buffer(nbytes)
        self.download(ctypes.addressof(data), src, nbytes)
        return data.raw

    def _take_over(self, value: int, host_ptr: int, staged: int, size: int) -> None:
        self._wait(value)
        ctypes.memmove(host_ptr, staged, size)

    def _record_copy(self, command: Any, src: Any, src_offset: int, dst: Any, dst_offset: int, nbytes: int) -> None:
        region = self._region
        region.srcOffset, region.dstOffset, region.size = src_offset, dst_offset, nbytes
        self._vk.vkCmdCopyBuffer(command, src, dst, 1, region)

    def _check_range(self, address: int, nbytes: int) -> None:
        block = self._memory.block_of(address)
        if address + nbytes > block.end:
            raise VulkanError(f"{nbytes} bytes at {address:#x} run over the end of their memory block")

    def close(self) -> None:
        """Free the command buffers and the staging memory; the device must be idle or lost."""
        with self.lock:
            for ring in (self._arguments, self._uploads, self._downloads):
                ring.close()
            super().close()
