"""Traces: what ran on the device and when, on the host's clock.

Owns the timestamp queries around every dispatch and transfer while something traces. The stream calls
`Tracer.before` and `after`; nobody traces while `stream.tracer` is None. Host time is `clocks`', the file format
`chrome_trace`'s.

A traced command waits for all earlier ones, so its time is its own; traced work therefore runs one command after
another, and recorded programs are run as single dispatches.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from vkinductor.runtime.clocks import Clocks, Sample
from vkinductor.runtime.errors import UnsupportedError, check

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

# Commands that a trace keeps unless told otherwise; older ones are dropped.
DEFAULT_LIMIT = 1_000_000

KERNEL, COPY, FILL = "kernel", "gpu_memcpy", "gpu_memset"  # categories, as torch's profiler names them
CATEGORIES = {"fill": FILL}  # of transfers by name; the others are copies

# Commands to a query pool. A few pools are in use at a time: one is read again when the device is done with it.
_COMMANDS = 512

_ALL_COMMANDS = 0x10000
_BOTTOM_OF_PIPE = 0x2000
_RESULT_64_AVAILABILITY = 0x1 | 0x4


class Event(NamedTuple):
    """One command. begin_ns is on the clock of `time.perf_counter_ns`; duration_ns is the device's own."""

    name: str
    category: str
    begin_ns: int
    duration_ns: int


class Trace:
    """What ran between `start` and `stop`: the last commands, in order. Complete only after `stop`."""

    def __init__(self, tracer: Tracer, limit: int) -> None:
        self.tracer = tracer
        self.device_name: str = tracer.device.info.name
        self.events: deque[Event] = deque(maxlen=limit)


class _Pool:
    """A query pool: two timestamps for each command, and the submission after which all of them are there."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.commands: list[tuple[str, str]] = []
        self.value = 0


class Tracer:
    """Timestamps around the commands of one stream. The caller of every method holds the stream's lock.

    Raises:
        UnsupportedError: the device's queue has no timestamps.
    """

    def __init__(self, device: Device) -> None:
        limits = device.info.limits
        if not limits.timestamp_valid_bits:
            raise UnsupportedError(f"{device.info.name} has no timestamps on its compute queue: it cannot be traced")
        self.device = device
        self.listeners: list[Trace] = []
        self._stream, self._ffi, self._vk = device.stream, device.ffi, device.vk
        self._write = device.vk.vkCmdWriteTimestamp
        self._pool: _Pool | None = None
        self._full: deque[_Pool] = deque()
        self._spare: list[_Pool] = []
        self._raw: deque[tuple[tuple[str, str], int, int]] = deque(maxlen=DEFAULT_LIMIT)
        self.clocks = Clocks(device)
        self._sample = self.clocks.read()

    def before(self, command: Any, name: str, category: str = KERNEL) -> None:
        """Record the start of a command, once all earlier ones are done."""
        pool = self._pool
        if pool is None:
            pool = self._pool = self._empty(command)
        at = 2 * len(pool.commands)
        pool.commands.append((name, category))
        null = self._ffi.NULL
        self._vk.vkCmdPipelineBarrier(command, _ALL_COMMANDS, _ALL_COMMANDS, 0, 0, null, 0, null, 0, null)
        self._write(command, _BOTTOM_OF_PIPE, pool.handle, at)

    def after(self, command: Any) -> None:
        """Record the end of the command that `before` announced."""
        pool = self._pool
        if pool is None:  # tracing began after the command
            return
        self._write(command, _BOTTOM_OF_PIPE, pool.handle, 2 * len(pool.commands) - 1)
        if len(pool.commands) == _COMMANDS:
            pool.value = self._stream.submissions.next_value()
            self._full.append(pool)
            self._pool = None

    def drain(self) -> None:
        """Wait for the device and hand all that was traced to the listeners."""
        self._stream.synchronize()
        for pool in (*self._full, *([self._pool] if self._pool else [])):
            self._read(pool)
            self._spare.append(pool)
        self._full.clear()
        self._pool = None
        first, last = self._sample, self.clocks.read()
        events = [self._event(first, last, *entry) for entry in self._raw]
        self._raw.clear()
        self._sample = last
        for trace in self.listeners:
            trace.events.extend(events)

    def close(self) -> None:
        """Destroy the query pools; the device must be idle or lost."""
        pools = [*self._full, *self._spare, *([self._pool] if self._pool else [])]
        for pool in pools:
            self._vk.vkDestroyQueryPool(self.device.handle, pool.handle, self._ffi.NULL)
        self.clocks.close()
        self._full.clear()
        self._spare.clear()
        self._pool = None

    def _empty(self, command: Any) -> _Pool:
        """A pool whose queries are reset in `command`."""
        if self._full and self._full[0].value <= self._stream.submissions.completed():
            pool = self._full.popleft()
            self._read(pool)
        else:
            pool = self._spare.pop() if self._spare else _Pool(self._create(2 * _COMMANDS))
        self._vk.vkCmdResetQueryPool(command, pool.handle, 0, 2 * _COMMANDS)
        return pool

    def _create(self, queries: int) -> Any:
        info = self._ffi.new("VkQueryPoolCreateInfo *")
        info.sType, info.queryType, info.queryCount = 11, 2, queries
        out = self._ffi.new("VkQueryPool *")
        check(self._vk.vkCreateQueryPool(self.device.handle, info, self._ffi.NULL, out), "vkCreateQueryPool")
        return out[0]

    def _values(self, handle: Any, queries: int) -> list[int]:
        """(value, whether it is there) for each query, flat. The device is done with them."""
        values = self._ffi.new("uint64_t[]", 2 * queries)
        result = self._vk.vkGetQueryPoolResults(
            self.device.handle, handle, 0, queries, 16 * queries, values, 16, _RESULT_64_AVAILABILITY
        )
        if result != 1:  # VK_NOT_READY: a command failed to be recorded between its timestamps
            check(result, "reading timestamps")
        return list(values)

    def _read(self, pool: _Pool) -> None:
        values = self._values(pool.handle, 2 * len(pool.commands))
        for i, entry in enumerate(pool.commands):
            begin, begun, end, ended = values[4 * i : 4 * i + 4]
            if begun and ended:
                self._raw.append((entry, begin, end))
        pool.commands = []

    def _event(self, first: Sample, last: Sample, entry: tuple[str, str], begin: int, end: int) -> Event:
        """An event between two readings of the clocks."""
        clocks = self.clocks
        return Event(*entry, round(clocks.host_ns(first, last, begin)), round(clocks.nanoseconds(end, begin)))


def start(device: Device, limit: int = DEFAULT_LIMIT) -> Trace:
    """Trace what is dispatched and copied from now on, on any thread; waits for the device.

    Raises:
        UnsupportedError: the device's queue has no timestamps.
    """
    stream = device.stream
    with stream.lock:
        tracer = stream.tracer
        if tracer is None:
            tracer = Tracer(device)
            stream.tracer = tracer
        else:
            tracer.drain()  # what ran before belongs to the others
        trace = Trace(tracer, limit)
        tracer.listeners.append(trace)
        return trace


def stop(trace: Trace) -> None:
    """Wait for the device and end a trace. Idempotent; a trace of a closed device stays as it is.

    Raises:
        DeviceLostError: the device was lost; the trace has ended all the same.
    """
    tracer = trace.tracer
    stream = tracer.device.stream
    with stream.lock:
        if stream.tracer is not tracer or trace not in tracer.listeners:
            return
        try:
            tracer.drain()
        finally:
            tracer.listeners.remove(trace)
            if not tracer.listeners:
                stream.tracer = None
                tracer.close()
