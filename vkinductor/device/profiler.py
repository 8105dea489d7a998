"""torch.profiler: a profile that covers this device has the device's commands in its events, in its tables and in its
exported Chrome trace.

torch takes events of a device made in Python from nowhere (its seam, ProfilerStubs, is C++), so three methods of its
profiler are wrapped: what starts and stops a recording, and the export. What stops it also lets the profile's own
parser of results add the commands, from which torch makes `events()`, `key_averages()` and the tables.
`runtime.trace` measures; nothing is measured while no profile records.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity
from torch.profiler.profiler import _KinetoProfile

from vkinductor.device.registry import DEVICE_NAME, registry
from vkinductor.runtime.errors import VulkanError

if TYPE_CHECKING:
    from vkinductor.runtime.trace import Trace

# Where a profile keeps its `trace.Trace`.
_TRACE = "_vulkan_trace"


def install() -> None:
    """Wrap torch's profiler. Profiles made earlier are not covered."""
    profile: Any = _KinetoProfile
    profile.start_trace = _start_trace(profile.start_trace)
    profile.stop_trace = _stop_trace(profile.stop_trace)
    profile.export_chrome_trace = _export_chrome_trace(profile.export_chrome_trace)


def follow() -> None:
    """The device has been opened: profiles that record already follow it from now on."""
    for profile in tuple(registry.profiles):
        _follow(profile)


def _follow(profile: Any) -> None:
    device = registry.current()
    if device is None:
        return  # `follow` comes when it is opened
    from vkinductor.runtime import trace

    try:
        setattr(profile, _TRACE, trace.start(device.runtime))
    except VulkanError as error:  # no timestamps, or the device was lost: the profile goes on without it
        warnings.warn(f"the profile is of the CPU alone: {error}", RuntimeWarning, stacklevel=4)


def _start_trace(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def start_trace(self: Any) -> Any:
        result = original(self)
        setattr(self, _TRACE, None)
        if ProfilerActivity.PrivateUse1 in self.activities:
            with registry.lock:
                registry.profiles.append(self)
                _follow(self)
        return result

    return start_trace


def _stop_trace(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def stop_trace(self: Any) -> Any:
        try:
            with registry.lock:
                registry.profiles[:] = [p for p in registry.profiles if p is not self]
            followed = getattr(self, _TRACE, None)
            if followed is not None:
                from vkinductor.runtime import trace

                trace.stop(followed)  # first, so that what it waits for ends within the profile
                _list(self.profiler, followed)
        finally:
            result = original(self)
        return result

    return stop_trace


def _list(profiler: Any, followed: Trace) -> None:
    """Add a trace to what torch's profiler will parse from this recording.

    Unless its columns are another device's: torch gives a table those of one device, CUDA before any other.
    """
    parse = getattr(type(profiler), "_parse_kineto_results", None)  # private: a torch without it keeps its tables
    if parse is None or profiler.use_device != DEVICE_NAME:
        return

    def parse_with_device(result: Any, *args: Any, **kwargs: Any) -> list[Any]:
        from vkinductor.runtime import chrome_trace

        events: list[Any] = parse(profiler, result, *args, **kwargs)
        offset = chrome_trace.epoch_offset() - result.trace_start_ns()
        first = max((event.id for event in events), default=0) + 1
        events += [
            FunctionEvent(
                id=number,
                name=event.name,
                overload_name="",
                thread=0,
                start_us=(event.begin_ns + offset) / 1000,
                end_us=(event.begin_ns + offset + event.duration_ns) / 1000,
                input_shapes=[],
                stack=[],
                use_device=DEVICE_NAME,
                device_type=DeviceType.PrivateUse1,
            )
            for number, event in enumerate(followed.events, first)
        ]
        events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
        return events

    profiler._parse_kineto_results = parse_with_device


def _export_chrome_trace(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def export_chrome_trace(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        result = original(self, path, *args, **kwargs)
        followed = getattr(self, _TRACE, None)
        if followed is not None and followed.events:
            add(path, followed)
        return result

    return export_chrome_trace


def add(path: str, followed: Trace) -> None:
    """Add a trace to a file that torch exported (JSON, gzipped if it ends in .gz)."""
    import gzip
    import json
    from pathlib import Path

    from vkinductor.runtime import chrome_trace

    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    content = json.loads(data)
    # Kineto's files are objects and count from a base; the legacy exporter's are lists, and count from nowhere.
    if not isinstance(content, dict) or "baseTimeNanoseconds" not in content:
        return
    offset = chrome_trace.epoch_offset() - int(content["baseTimeNanoseconds"])
    events = content["traceEvents"]
    events += chrome_trace.track(followed.device_name)
    events += [chrome_trace.complete(event, offset) for event in followed.events]
    chrome_trace.replace(path, json.dumps(content))
