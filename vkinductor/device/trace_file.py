"""`options={"trace": path}`: each call of a compiled graph adds its device commands to a Chrome trace.

Owns what the files hold. A file belongs to its path: all graphs compiled with one path, as those around a graph
break are, write one file.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from vkinductor.device.registry import registry
from vkinductor.runtime import chrome_trace, trace
from vkinductor.runtime.errors import UnsupportedError

# Commands that a file holds: the last ones.
LIMIT = 100_000


class TraceFile:
    """The commands of all calls so far, as JSON. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._events: deque[str] = deque(maxlen=LIMIT)
        # Times count from here: those since 1970 would lose the nanoseconds in a double.
        self._start = time.perf_counter_ns()
        self._base = self._start + chrome_trace.epoch_offset()

    def add(self, added: trace.Trace) -> None:
        """Add a trace that has ended, and write the file.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            self._events.extend(json.dumps(chrome_trace.complete(event, -self._start)) for event in added.events)
            head = json.dumps({"displayTimeUnit": "ns", "baseTimeNanoseconds": self._base})
            events = [*map(json.dumps, chrome_trace.track(added.device_name)), *self._events]
            chrome_trace.replace(self.path, head[:-1] + ', "traceEvents": [\n' + ",\n".join(events) + "\n]}\n")


class TracedGraph:
    """A compiled graph whose calls are traced. It returns when the device has finished the call."""

    def __init__(self, compiled: Callable[..., Any], file: TraceFile) -> None:
        self.compiled = compiled
        self.file = file

    def __call__(self, *args: Any) -> Any:
        """What the graph returns.

        Raises:
            OSError: the file cannot be written.
        """
        recorded = trace.start(registry.open().runtime, LIMIT)
        try:
            return self.compiled(*args)
        finally:
            trace.stop(recorded)
            self.file.add(recorded)


def trace_file(path: str) -> TraceFile:
    """The file at a path, which is not written before the first call.

    Raises:
        UnsupportedError: the device has no timestamps.
    """
    info = registry.open().runtime.info
    if not info.limits.timestamp_valid_bits:
        raise UnsupportedError(f"{info.name} has no timestamps on its compute queue: option 'trace' needs them")
    path = os.path.abspath(path)
    with registry.lock:
        return registry.trace_files.setdefault(path, TraceFile(path))
