"""torch.profiler: a profile that covers this device has the device's commands in its exported Chrome trace.

torch takes events of a device made in Python from nowhere (its seam, ProfilerStubs, is C++), so three methods of its
profiler are wrapped: what starts and stops a recording, and the export. Everything else of a profile, its tables
among them, is as torch makes it. `runtime.trace` measures; nothing is measured while no profile records.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity
from torch.profiler.profiler import _KinetoProfile

from vkinductor.device.registry import registry
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
        finally:
            result = original(self)
        return result

    return stop_trace


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
