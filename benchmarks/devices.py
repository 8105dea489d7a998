"""The systems that benchmarks compare: how each compiles, waits, and measures its own device.

One system a process: torch has one accelerator a process, and what was compiled for one must not slow another.
"""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from .measure import WARM_UP_S

OURS = "vulkan"
PERSISTENT = "vulkan persistent"
INT8 = "vulkan int8"

Calls = Sequence[Callable[[], Any]]


class System(ABC):
    """``name``, as tables show it; ``device``, where its tensors live."""

    name: str
    device: str
    # When the device was last seen busy, by time.perf_counter().
    _busy = 0.0

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` as this system runs it."""
        return function

    def compile_whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which is many kernels, as this system runs it at its best."""
        return self.compile(function)

    def compile_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` of fixed shapes, called again and again on its own results, as one graph."""
        return self.compile_whole(function)

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device."""

    @abstractmethod
    def span(self, record: Callable[[], Any], host: float) -> float:
        """Microseconds of the device for what ``record`` launches, from the first kernel to the last; the host needs at
        most ``host`` seconds to launch it."""

    @abstractmethod
    def about(self) -> dict[str, str]:
        """The device, its driver, the versions that matter."""

    def time(self, calls: Calls, seconds: float = 0.2, samples: int = 9) -> float:
        """Median microseconds of one call, over calls in rotation (which keeps a cache from holding their inputs)."""
        for call in calls:
            call()
        self.synchronize()
        start, n = time.perf_counter(), 0
        warm_up = WARM_UP_S if start - self._busy > WARM_UP_S else WARM_UP_S / 3
        while time.perf_counter() - start < warm_up or n < len(calls):
            calls[n % len(calls)]()
            n += 1
            if n % 16 == 0:
                self.synchronize()
        self.synchronize()
        each = (time.perf_counter() - start) / n
        # As many as a host can launch while the device is held up; whole rounds.
        count = max(1, min(48, int(seconds / samples / each)))
        count = -(-count // len(calls)) * len(calls)

        def record() -> None:
            for i in range(count):
                calls[i % len(calls)]()

        median = statistics.median(self.span(record, count * each) for _ in range(samples)) / count
        self._busy = time.perf_counter()
        return median


class Vulkan(System):
    """vkinductor's compiled graphs, recorded and replayed."""

    name = device = OURS
    # Of a step that is called again and again.
    options: ClassVar[dict[str, Any] | None] = None

    def __init__(self, mode: str | None = None) -> None:
        import vkinductor

        self._vkinductor, self._mode = vkinductor, mode

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Kernels on their own: a replayed graph is a submit of its own, and the device would wait for the host.
        if self._mode is None:
            return torch.compile(function, backend="vulkan", options={"recording": False})
        return torch.compile(function, backend="vulkan", mode=self._mode)

    def compile_whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend="vulkan", mode=self._mode)

    def compile_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        how: dict[str, Any] = {"options": self.options} if self.options else {"mode": self._mode}
        return torch.compile(function, backend="vulkan", fullgraph=True, dynamic=False, **how)

    def synchronize(self) -> None:
        self._vkinductor.synchronize()

    def span(self, record: Callable[[], Any], host: float) -> float:
        if has_timestamps() and self._vkinductor.device_info().kind != "cpu":
            return device_time(record, host)
        self.synchronize()
        start = time.perf_counter()
        record()
        self.synchronize()
        return (time.perf_counter() - start) * 1e6

    def about(self) -> dict[str, str]:
        info = self._vkinductor.device_info()
        return {"device": info.name, "driver": f"{info.driver_name} {info.driver_info}", "torch": torch.__version__}


class Persistent(Vulkan):
    """The same with a step in one kernel, where the device takes it."""

    name = PERSISTENT
    options: ClassVar = {"persistent": True}


class Int8(Vulkan):
    """The same with activations in 8 bits where they meet weights in blocks."""

    name = INT8
    options: ClassVar = {"int8_activations": True}


class CudaEager(System):
    """PyTorch's own kernels: cuBLAS, cuDNN, flash attention among them."""

    name, device = "CUDA eager", "cuda"

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def span(self, record: Callable[[], Any], host: float) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # some 10 ms: the host is done before the device begins
        start.record()
        record()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    def about(self) -> dict[str, str]:
        return {
            "device": torch.cuda.get_device_name(),
            "driver": f"CUDA {torch.version.cuda}",
            "torch": torch.__version__,
        }


class CudaInductor(CudaEager):
    """torch.compile on CUDA."""

    name = "CUDA Inductor"

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function)

    def compile_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True, dynamic=False)

        def call(*args: torch.Tensor) -> Any:
            # Results lie in the graph's own memory, which the next call's results take.
            torch.compiler.cudagraph_mark_step_begin()
            return torch.utils._pytree.tree_map(torch.clone, compiled(*args))

        return call


SYSTEMS: dict[str, type[System]] = {system.name: system for system in (Vulkan, CudaEager, CudaInductor)}


def available() -> list[str]:
    """Names of the systems that run here, ours first."""
    return [OURS, *(name for name in SYSTEMS if name != OURS and torch.cuda.is_available())]


def has_timestamps() -> bool:
    """Whether the Vulkan device has timestamps on its queue."""
    import vkinductor

    return vkinductor.device_info().limits.timestamp_valid_bits > 0


def increment(loop: int = 1) -> Any:
    """A pipeline that adds to 64 floats, ``loop`` times."""
    from vkinductor.codegen.tuning.clock import hold_source
    from vkinductor.runtime import context

    return context.get().pipelines.get(hold_source(loop))


def device_time(record: Callable[[], Any], host: float = 0.003) -> float:
    """Microseconds of the device for what ``record`` dispatches, submitted before the device begins with it.

    A long kernel holds the device up until then: twice the ``host`` seconds that the host is said to need, and 6 ms or
    more; one that needs longer makes the result one of the host. The kernel goes in pieces of a millisecond or more, so
    that the stream, which sends an idle device its first work early, has submits of full length by then.
    """
    from vkinductor.runtime import context

    device = context.get()
    stream = device.stream
    hold = increment(500_000)
    own = device.memory.allocate(1024)
    stream.synchronize()
    for _ in range(max(5, math.ceil(2000 * host))):
        stream.dispatch(hold, (1, 1, 1), hold.pack(own), ((own, 1024),), ((own, 1024),))
        stream.flush()
    with stream.timed() as timer:
        record()
    stream.flush()
    took = timer.milliseconds * 1000
    device.memory.free(own)
    return took
