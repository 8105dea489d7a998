"""The Chrome trace format (chrome://tracing, Perfetto): a trace's events as JSON, and files replaced as a whole.

Format: "Trace Event Format", Google, 2016; `baseTimeNanoseconds`, which times are relative to, is Kineto's.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import time
from typing import Any

from vkinductor.runtime.trace import Event

# No process has this id: Linux gives out ids below 2**22.
_PROCESS = 1 << 23


def epoch_offset() -> int:
    """Nanoseconds to add to `time.perf_counter_ns` for time since 1970, which Kineto counts in."""
    return time.time_ns() - time.perf_counter_ns()


def track(device_name: str) -> list[dict[str, Any]]:
    """What names the process and the thread that events are shown under."""
    shown: dict[str, dict[str, Any]] = {
        "process_name": {"name": f"vulkan: {device_name}"},
        "process_sort_index": {"sort_index": _PROCESS},  # below torch's CPU threads
        "thread_name": {"name": "queue"},
    }
    return [{"ph": "M", "name": name, "pid": _PROCESS, "tid": 0, "args": args} for name, args in shown.items()]


def complete(event: Event, offset_ns: int) -> dict[str, Any]:
    """An event with its time in microseconds. offset_ns: from `perf_counter_ns` to the file's clock."""
    return {
        "ph": "X",
        "cat": event.category,
        "name": event.name,
        "pid": _PROCESS,
        "tid": 0,
        "ts": (event.begin_ns + offset_ns) / 1000,
        "dur": event.duration_ns / 1000,
    }


def replace(path: str, text: str) -> None:
    """Write a file, gzipped if it ends in .gz, so that a reader sees the old one or the new one.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
    """
    data = text.encode()
    if path.endswith(".gz"):
        data = gzip.compress(data, 6)
    temporary = f"{path}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
