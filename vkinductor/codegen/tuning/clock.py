"""How long a call takes on the device.

By timestamps on a GPU, around calls that were submitted before the device begins with them: a kernel that runs for some
milliseconds holds it up until then. By the host's clock on CPU drivers and where a queue has no timestamps.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.device import Device
from vkinductor.runtime.pipeline import KernelSource

# A GPU that was idle for a second runs two to four times slower at first (H100).
_COLD_AFTER_S = 0.2
_WARM_UP_S = 0.3
_SHORT_WARM_UP_S = 0.02
# What one sample shall take on the device, and the most calls in one: the host has to be done before the hold ends.
_SAMPLE_US = 2000.0
_SAMPLE_US_CPU = 10000.0
_MOST_CALLS = 100
# Launches of the kernel that holds the device up, and passes of its loop: about 1.2 ms each on an H100. Several,
# because the stream sends an idle device its first work early.
_HOLDS, _HOLD_PASSES = 4, 500_000


class Runs(Protocol):
    """What can be timed. ``count``: calls a sample, 0 until it is known."""

    count: int

    def run(self, count: int = 1) -> None:
        """Dispatch so many calls."""
        ...


class Clock:
    """Times calls on ``device``. ``on_device``: whether by its own timestamps."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = device.stream
        self._last = -1e9
        info = device.info
        self.on_device = info.kind != "cpu" and info.limits.timestamp_valid_bits > 0
        self._hold: Any = None
        self._own = 0

    def sample(self, runner: Runs) -> float:
        """Microseconds of one call, from several in a row. The first sample of a runner warms the device up."""
        if not runner.count:
            self._prepare(runner)
        elif self.on_device and time.perf_counter() - self._last > _COLD_AFTER_S:
            self._warm_up(runner, _WARM_UP_S)
        took = self._span(runner, runner.count) / runner.count
        self._last = time.perf_counter()
        return took

    def _prepare(self, runner: Runs) -> None:
        runner.run()
        self._stream.synchronize()
        idle = time.perf_counter() - self._last
        if self.on_device and idle > _SHORT_WARM_UP_S:
            self._warm_up(runner, _WARM_UP_S if idle > _COLD_AFTER_S else _SHORT_WARM_UP_S)
        once = self._span(runner, 1)
        target = _SAMPLE_US if self.on_device else _SAMPLE_US_CPU
        runner.count = max(1, min(_MOST_CALLS, int(target / max(once, 1e-3))))

    def _warm_up(self, runner: Runs, seconds: float) -> None:
        start, n = time.perf_counter(), 1
        while time.perf_counter() - start < seconds:
            runner.run(n)
            self._stream.synchronize()
            n = min(2 * n, 32)

    def _span(self, runner: Runs, count: int) -> float:
        """Microseconds of ``count`` calls together."""
        stream = self._stream
        stream.synchronize()
        if not self.on_device:
            start = time.perf_counter()
            runner.run(count)
            stream.synchronize()
            return (time.perf_counter() - start) * 1e6
        self._hold_up()
        with stream.timed() as timer:
            runner.run(count)
        stream.flush()
        return timer.milliseconds * 1000

    def _hold_up(self) -> None:
        if self._hold is None:
            self._hold = self._device.pipelines.get(hold_source())
            self._own = self._device.memory.allocate(1024)
        own = ((self._own, 1024),)
        for _ in range(_HOLDS):
            self._stream.dispatch(self._hold, (1, 1, 1), self._hold.pack(self._own), own, own)
            self._stream.flush()

    def close(self) -> None:
        """Give the memory back."""
        if self._own:
            self._device.memory.free(self._own)
            self._own = 0


def hold_source(passes: int = _HOLD_PASSES) -> KernelSource:
    """A kernel of one workgroup that adds to 64 floats at its only argument, ``passes`` times."""
    layout = ArgumentLayout((("x", "ptr"),))
    glsl = (
        "#version 460\n"
        + "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
        + "layout(local_size_x = 64) in;\n"
        "layout(buffer_reference, scalar, buffer_reference_align = 4) buffer F { float v[]; };\n"
        + layout.glsl(inline=True)
        + "void main() {\n    float y = F(ARG.x).v[gl_LocalInvocationID.x];\n"
        f"    for (int i = 0; i < {passes}; i++) y = y * 0.999 + 1.0;\n"
        "    F(ARG.x).v[gl_LocalInvocationID.x] = y;\n}\n"
    )
    return KernelSource("hold", glsl, layout)
