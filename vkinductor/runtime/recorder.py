"""Recording into the queue: what is common to dispatches and transfers, and waiting for them.

Owns the lock, the hazard state, when a submit is due, and what is idle. The operations are `stream`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vkinductor.runtime.barriers import TO_TRANSFER, Barriers
from vkinductor.runtime.errors import VulkanError, check
from vkinductor.runtime.hazards import HazardTracker, Ranges, ranges_overlap
from vkinductor.runtime.replay.capture import Captures
from vkinductor.runtime.replay.resources import SharedResources
from vkinductor.runtime.stats import counters
from vkinductor.runtime.submissions import Entry, Slot, Submissions
from vkinductor.runtime.timestamps import Timer, TimestampPool
from vkinductor.runtime.trace import CATEGORIES, COPY

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.replay.program import Instance
    from vkinductor.runtime.trace import Tracer

# A submit holds at most this much work, by device kind: (dispatches, bytes, FLOPs). Integrated GPUs are
# shared with the desktop and their watchdogs bite within seconds. On an H200 a submit takes 18 us of the host, 40 with
# a command buffer that was not made before (see `_run_program`): decode steps of SmolLM2-135M have 153 dispatches, so
# that three share one.
_SUBMIT_LIMITS = {
    "integrated": (128, 4 << 30, 20_000_000_000),
    "virtual": (128, 4 << 30, 20_000_000_000),
    "other": (128, 4 << 30, 20_000_000_000),
    "cpu": (256, 64 << 30, 1_000_000_000_000),
    "discrete": (512, 256 << 30, 20_000_000_000_000),
}

# An idle device gets its first work after this many dispatches; the number then doubles up to the limit.
_FIRST_SUBMIT = 16


class Recorder:
    """An in-order queue with hazards tracked. The base of `stream.Stream`, which adds the operations."""

    def __init__(self, device: Device) -> None:
        self.lock = threading.RLock()
        self._memory = device.memory
        self._ffi, self._vk = device.ffi, device.vk
        self.barriers = Barriers(device.ffi, device.vk, device.info.features.synchronization2)
        self.submissions = Submissions(device, self.barriers)
        self._hazards = HazardTracker()
        self.shared = SharedResources(device)
        self.captures = Captures()
        self._timestamps = TimestampPool(device, self)
        self.tracer: Tracer | None = None  # while something traces, see `trace`
        self._max_dispatches, self._max_bytes, self._max_flops = _SUBMIT_LIMITS[device.info.kind]
        # A recorded program is one command buffer, but where a watchdog bites: there it is cut like everything else.
        shared_with_desktop = device.info.kind in ("integrated", "virtual", "other")
        self.program_dispatches = self._max_dispatches if shared_with_desktop else None
        self._submit_at = _FIRST_SUBMIT
        self._replayed = 0  # dispatches of programs in what is being recorded, but for one of each
        self._program = device.ffi.new("VkCommandBuffer[1]")
        self._bound: Any = None  # the pipeline bound in the command buffer being recorded
        self._bytes = self._flops = 0

    def flush(self) -> None:
        """Submit what is recorded, without waiting."""
        with self.lock:
            self._submit()

    def synchronize(self) -> None:
        """Submit what is recorded and wait until the device has finished everything."""
        self.captures.refuse("a wait for the device")
        with self.lock:
            if self.submissions.failure is not None:
                raise self.submissions.failure
            self._submit()
            self._wait(self.submissions.submitted)
            self._became_idle()

    @property
    def idle(self) -> bool:
        """Whether nothing is recorded and the device has finished everything submitted."""
        with self.lock:
            submissions = self.submissions
            return submissions.current is None and submissions.completed() >= submissions.submitted

    @contextmanager
    def timed(self) -> Iterator[Timer]:
        """Measure the commands recorded inside on the device: `with stream.timed() as t: ...;
        t.milliseconds`.

        Raises:
            UnsupportedError: the device's queue has no timestamps.
        """
        timer = self._timestamps.start()
        try:
            yield timer
        finally:
            timer.stop()

    def fail(self, error: VulkanError) -> None:
        """Make every later operation raise `error` (a fork, a closed device)."""
        self.submissions.failure = error

    def abandon(self, error: VulkanError) -> None:
        """After a fork, in the child: forget the lock, whose holder is gone, and fail from now on."""
        self.lock = threading.RLock()
        self.submissions.current = None
        self.tracer = None
        self.fail(error)

    @property
    def failure(self) -> VulkanError | None:
        """The sticky error, if there is one."""
        return self.submissions.failure

    def close(self) -> None:
        """Free the command buffers; the device must be idle or lost."""
        with self.lock:
            self._timestamps.close()
            if self.tracer is not None:
                self.tracer.close()
                self.tracer = None
            self.shared.close()
            self.submissions.close()
            self.fail(VulkanError("the device was closed"))

    def command(self) -> Any:
        """The command buffer being recorded, begun if need be; for `timestamps`, which holds the lock."""
        return self._begin().command

    def _open(self) -> Slot:
        """The submission being put together, or a new one."""
        if self.submissions.current is None:
            self._bytes = self._flops = self._replayed = 0
        return self.submissions.open()

    def _begin(self) -> Slot:
        """The same, with its command buffer being recorded."""
        slot = self._open()
        if not slot.recording:
            self._bound = None
            self.submissions.begin()
        return slot

    def _submit(self) -> None:
        if self.submissions.current is None:
            return
        self.submissions.submit()
        self._submit_at = min(self._submit_at * 2, self._max_dispatches)

    def _run_program(self, instance: Instance, number: int, dispatches: int, entry: Entry, mask: int) -> int:
        """Run a recorded program's command buffer with so many dispatches; the value its submission signals.

        mask: earlier accesses that its first commands wait for. That barrier stands before the program, in a primary
        command buffer, not at the beginning of the program's secondary one: there NVIDIA's driver (580.159, an H200)
        did not wait for dispatches and copies of the primary one.

        That primary command buffer is one that was made before, unless one is being recorded: resetting, recording and
        ending it took 22 us of the host beside 18 for the submit (the same driver, a processor of varying speed). Small
        programs share a submit as dispatches do. Once there is work for some time, a device that has none is not kept
        waiting.
        """
        slot = self.submissions.current
        most = self.program_dispatches or self._max_dispatches
        if slot is not None and self._recorded(slot) + dispatches > most:
            self._submit()
        slot = self._open()
        if not slot.recording:
            slot.made.append(self._primary(instance, number, mask))
        else:
            self._execute(slot.command, instance.commands[number], mask, instance.begins)
            self._bound = None  # a program leaves nothing bound that can be relied on
        counters.barriers += bool(mask)
        slot.journal.append(entry)
        self._replayed += dispatches - 1
        recorded = self._recorded(slot)
        if recorded >= self._submit_at or (recorded >= _FIRST_SUBMIT and self.submissions.starved()):
            self._submit()
        return slot.value

    def _execute(self, primary: Any, secondary: Any, mask: int, begins: int) -> None:
        if mask:
            self.barriers.record(primary, mask, begins)
        self._program[0] = secondary
        self._vk.vkCmdExecuteCommands(primary, 1, self._program)

    def _primary(self, instance: Instance, number: int, mask: int) -> Any:
        """The primary command buffer that waits for `mask` and runs one of an instance's."""
        primary = instance.primaries.get((number, mask))
        if primary is None:
            primary = self.shared.begin_primary()
            self._execute(primary, instance.commands[number], mask, instance.begins)
            check(self._vk.vkEndCommandBuffer(primary), "vkEndCommandBuffer")
            instance.primaries[number, mask] = primary
        return primary

    def _recorded(self, slot: Slot) -> int:
        """Dispatches and transfers of the submission being recorded."""
        return len(slot.journal) + self._replayed

    def _wait(self, value: int) -> None:
        submissions = self.submissions
        submissions.wait(value)
        if submissions.current is None and value >= submissions.submitted:
            self._became_idle()

    def _became_idle(self) -> None:
        self._hazards.clear()
        self.submissions.forget()
        self._submit_at = _FIRST_SUBMIT

    def _transfer(self, name: str, reads: Ranges, writes: Ranges) -> Any:
        """The command buffer for a transfer, after any barrier it needs."""
        slot = self._begin()
        mask = self._hazards.transfer(reads, writes)
        if mask:
            self.barriers.record(slot.command, mask, TO_TRANSFER)
            counters.barriers += 1
        slot.journal.append((name, reads, writes))
        if self.tracer is not None:
            self.tracer.before(slot.command, name, CATEGORIES.get(name, COPY))
        return slot.command

    def _after_transfer(self, nbytes: int) -> None:
        counters.copies += 1
        self._bytes += nbytes
        current = self.submissions.current
        if self.tracer is not None and current is not None:
            self.tracer.after(current.command)
        if self._bytes >= self._max_bytes or (current is not None and self._recorded(current) >= self._submit_at):
            self._submit()

    def _unused(self, address: int, nbytes: int, by_writes_only: bool = False) -> bool:
        return self._last_user(address, address + nbytes, by_writes_only) is None

    def _last_user(self, lo: int, hi: int, by_writes_only: bool = False) -> Slot | None:
        """The newest unfinished submission (or the one being recorded) that touches [lo, hi)."""
        if self.submissions.failure is not None:
            raise self.submissions.failure
        for slot in self.submissions.in_flight():
            for _, reads, writes in reversed(slot.journal):
                if ranges_overlap(writes, lo, hi) or (not by_writes_only and ranges_overlap(reads, lo, hi)):
                    return slot
        return None
