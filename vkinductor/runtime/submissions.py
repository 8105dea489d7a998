"""The queue: command buffers in a ring, one timeline semaphore, submits and waits, and what is in flight.

Owns which submission is being recorded and which have finished. What goes into the command buffers is the
stream's business, and so is the lock: nothing here is thread-safe by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vkinductor.runtime.barriers import ALL_SOURCES, TO_HOST, Barriers
from vkinductor.runtime.errors import DEVICE_LOST, TIMEOUT, DeviceLostError, VulkanError, check
from vkinductor.runtime.hazards import Ranges
from vkinductor.runtime.stats import counters

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

# Submissions in flight before recording waits for the oldest. A few keep the device busy; more only hold
# memory.
SLOTS = 8

# A wait returns to Python this often, so that Ctrl-C works.
_WAIT_SLICE_NS = 500_000_000

# A wait polls this long before it blocks: on an H100 the end of a short kernel is then seen 11 us sooner (35 us
# after its recording began, against 46), and the thread that goes on is not one that has to be woken. CUDA polls
# without end; this ends, so that a lost device is noticed. A CPU driver needs the processor itself. A word in mapped
# memory that the device wrote at the end of each submission was polled instead on an H200, with each token read: 653
# tokens/s, 778 with the word written and the semaphore polled, 772 without the word.
SPIN_NS = {"discrete": 8_000_000, "integrated": 50_000}

# Names of kernels in a message about a lost device.
_NAMES_SHOWN = 24

# Command buffers of a submission that there is room for from the start.
_FEW_COMMANDS = 16

_TRANSIENT, _SIMULTANEOUS_USE = 0x1, 0x4

# (name of the kernel or transfer, its reads, its writes)
Entry = tuple[str, Ranges, Ranges]


class Slot:
    """What one submission runs: command buffers made before, then `command`, with a pool of its own, if it is
    `recording`. value: that the submission signals. journal: what they contain.
    """

    __slots__ = ("command", "journal", "made", "pool", "recording", "value")

    def __init__(self, pool: Any, command: Any) -> None:
        self.pool, self.command = pool, command
        self.value = 0
        self.recording = False
        self.made: list[Any] = []
        self.journal: list[Entry] = []


class Submissions:
    """Fills one slot at a time and submits it to the device's queue."""

    def __init__(self, device: Device, barriers: Barriers) -> None:
        self._device = device
        self._ffi, self._vk = device.ffi, device.vk
        self._barriers = barriers
        self.failure: VulkanError | None = None
        self.current: Slot | None = None
        self.submitted = 0  # value of the latest submission
        self._done = 0  # value known to be reached
        self._slots: list[Slot] = []
        self._at = 0
        self._end: Slot | None = None
        self.spin_ns = SPIN_NS.get(device.info.kind, 0)
        self._prepare()

    def _prepare(self) -> None:
        ffi = self._ffi
        kind = ffi.new("VkSemaphoreTypeCreateInfo *")
        kind.sType, kind.semaphoreType = 1000207002, 1  # timeline
        info = ffi.new("VkSemaphoreCreateInfo *")
        info.sType, info.pNext = 9, kind
        out = ffi.new("VkSemaphore *")
        self._check(self._vk.vkCreateSemaphore(self._device.handle, info, ffi.NULL, out), "vkCreateSemaphore")
        self._semaphore = out[0]
        self._semaphores = ffi.new("VkSemaphore[1]", [out[0]])
        self._counter = ffi.new("uint64_t *")
        self._value = ffi.new("uint64_t *")
        self._begin_info = ffi.new("VkCommandBufferBeginInfo *")
        self._begin_info.sType, self._begin_info.flags = 42, 1  # one-time submit
        self._commands = ffi.new("VkCommandBuffer[]", _FEW_COMMANDS)
        self._most_commands = _FEW_COMMANDS
        timeline = ffi.new("VkTimelineSemaphoreSubmitInfo *")
        timeline.sType = 1000207003
        timeline.signalSemaphoreValueCount, timeline.pSignalSemaphoreValues = 1, self._value
        submit = ffi.new("VkSubmitInfo *")
        submit.sType, submit.pNext = 4, timeline
        submit.signalSemaphoreCount, submit.pSignalSemaphores = 1, self._semaphores
        self._timeline_info, self._submit_info = timeline, submit
        wait = ffi.new("VkSemaphoreWaitInfo *")
        self._wait_value = ffi.new("uint64_t *")
        wait.sType = 1000207004
        wait.semaphoreCount, wait.pSemaphores, wait.pValues = 1, self._semaphores, self._wait_value
        self._wait_info = wait

    def _new_slot(self, flags: int = _TRANSIENT) -> Slot:
        ffi, vk, handle = self._ffi, self._vk, self._device.handle
        info = ffi.new("VkCommandPoolCreateInfo *")
        info.sType, info.flags, info.queueFamilyIndex = 39, flags, self._device.queue_family
        pool = ffi.new("VkCommandPool *")
        self._check(vk.vkCreateCommandPool(handle, info, ffi.NULL, pool), "vkCreateCommandPool")
        allocate = ffi.new("VkCommandBufferAllocateInfo *")
        allocate.sType, allocate.commandPool, allocate.commandBufferCount = 40, pool[0], 1
        command = ffi.new("VkCommandBuffer *")
        self._check(vk.vkAllocateCommandBuffers(handle, allocate, command), "vkAllocateCommandBuffers")
        return Slot(pool[0], command[0])

    def _to_host(self) -> Any:
        """A command buffer that ends submissions of which nothing is recorded: see `submit`. Made once."""
        if self._end is None:
            self._end = self._new_slot(0)
            info = self._ffi.new("VkCommandBufferBeginInfo *")
            info.sType, info.flags = 42, _SIMULTANEOUS_USE
            self._check(self._vk.vkBeginCommandBuffer(self._end.command, info), "vkBeginCommandBuffer")
            self._barriers.record(self._end.command, ALL_SOURCES, TO_HOST)
            self._check(self._vk.vkEndCommandBuffer(self._end.command), "vkEndCommandBuffer")
        return self._end.command

    def next_value(self) -> int:
        """The value that the submission being recorded, or the next one, will signal."""
        return self.submitted + 1

    def completed(self) -> int:
        """The value that the device has reached."""
        if self._done < self.submitted:
            self._check(
                self._vk.vkGetSemaphoreCounterValue(self._device.handle, self._semaphore, self._counter),
                "vkGetSemaphoreCounterValue",
            )
            self._done = self._counter[0]
        return self._done

    def open(self) -> Slot:
        """The slot being filled; takes one (and waits for its last use) when there is none."""
        if self.current is None:
            self.current = self._next_slot()
        return self.current

    def begin(self) -> Slot:
        """The same, with its command buffer being recorded."""
        slot = self.open()
        if not slot.recording:
            self._check(self._vk.vkResetCommandPool(self._device.handle, slot.pool, 0), "vkResetCommandPool")
            self._check(self._vk.vkBeginCommandBuffer(slot.command, self._begin_info), "vkBeginCommandBuffer")
            slot.recording = True
        return slot

    def _next_slot(self) -> Slot:
        """The next slot of the ring, after its last use has finished."""
        if self.failure is not None:
            raise self.failure
        if len(self._slots) < SLOTS:
            slot = self._new_slot()
            self._slots.insert(self._at, slot)
        else:
            slot = self._slots[self._at]
            self.wait(slot.value)
        self._at = (self._at + 1) % SLOTS
        slot.journal, slot.made = [], []
        slot.value = self.next_value()
        return slot

    def starved(self) -> bool:
        """Whether the device has finished all that was submitted."""
        return self.completed() >= self.submitted

    def submit(self) -> None:
        """Submit what is recorded, if anything."""
        slot = self.current
        if slot is None:
            return
        self.current = None
        commands = slot.made
        # The host may read what this wrote once it has waited: needed for mapped memory and downloads.
        if slot.recording:
            slot.recording = False
            self._barriers.record(slot.command, ALL_SOURCES, TO_HOST)
            self._check(self._vk.vkEndCommandBuffer(slot.command), "vkEndCommandBuffer")
            commands.append(slot.command)
        else:
            commands.append(self._to_host())
        count = len(commands)
        if count > self._most_commands:
            self._commands, self._most_commands = self._ffi.new("VkCommandBuffer[]", count), count
        self._commands[0:count] = commands
        self._submit_info.commandBufferCount, self._submit_info.pCommandBuffers = count, self._commands
        self._value[0] = slot.value
        self.submitted = slot.value
        self._check(self._vk.vkQueueSubmit(self._device.queue, 1, self._submit_info, self._ffi.NULL), "vkQueueSubmit")
        counters.submits += 1

    def wait(self, value: int) -> None:
        """Return when the submission of this value has finished; submits it first if it is still being
        recorded.
        """
        if value <= self._done:
            return
        if value > self.submitted:
            self.submit()
        if self.spin_ns:
            until = time.perf_counter_ns() + self.spin_ns
            while self.completed() < value and time.perf_counter_ns() < until:
                pass
            if value <= self._done:
                return
        self._wait_value[0] = value
        while True:
            result = self._vk.vkWaitSemaphores(self._device.handle, self._wait_info, _WAIT_SLICE_NS)
            if result != TIMEOUT:
                break
        self._check(result, "waiting for the device")
        self._done = max(self._done, value)

    def in_flight(self) -> Iterator[Slot]:
        """Slots recorded or running, newest first."""
        done = self.completed()
        for back in range(1, len(self._slots) + 1):
            slot = self._slots[(self._at - back) % len(self._slots)]
            if slot.value > done:
                yield slot

    def forget(self) -> None:
        """Drop the journals; the device is idle."""
        for slot in self._slots:
            slot.journal = []

    def _check(self, result: int, what: str) -> None:
        """`errors.check`, with loss of the device made sticky and explained."""
        if self.failure is not None:
            raise self.failure
        if result != DEVICE_LOST:
            check(result, what)
            return
        names = [name for slot in self._slots if slot.value > self._done for name, _, _ in slot.journal]
        shown = ", ".join(names[-_NAMES_SHOWN:]) or "nothing that this process recorded"
        more = f" (the last {_NAMES_SHOWN} of {len(names)})" if len(names) > _NAMES_SHOWN else ""
        self.failure = DeviceLostError(
            f"{self._device.info.name} was lost ({what}). In flight{more}: {shown}. Either a kernel ran "
            "longer than the system allows, or it accessed memory it must not (options={'check_bounds': "
            "True} finds that), or the driver failed (see the system's log). Start a new process: this one "
            "has lost the device for good"
        )
        raise self.failure

    def close(self) -> None:
        """Destroy pools and semaphore; the device must be idle or lost."""
        ffi, handle = self._ffi, self._device.handle
        for slot in [*self._slots, *([self._end] if self._end else [])]:
            self._vk.vkDestroyCommandPool(handle, slot.pool, ffi.NULL)
        self._slots.clear()
        self._end = None
        self._vk.vkDestroySemaphore(handle, self._semaphore, ffi.NULL)
