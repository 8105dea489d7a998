"""What a call costs besides the device's own work: eager, compiled, recorded; cold and warm start.

    python -m benchmarks.overhead [--json FILE] [--quick] [--no-start]

Peers are measured in the same run: Inductor on the CPU, and CUDA's eager mode and Inductor (default and
reduce-overhead) where there is such a card. The floor is a chain of as many dependent dispatches of a trivial kernel:
recorded and replayed, and dispatched one by one, with the device's own time for a chain it had before it began.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import vkinductor

from .measure import Row, measure, save, table

CHAIN = 200


def chain(x: torch.Tensor) -> torch.Tensor:
    """200 kernels, each of which needs all of the last one's result: column and row statistics in turn."""
    for _ in range(CHAIN // 2):
        x = x - x.mean(0, keepdim=True)
        x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
    return x


def one(x: torch.Tensor) -> torch.Tensor:
    """A single kernel."""
    return torch.tanh(x) * 2


def transformer() -> nn.Module:
    """Four pre-norm layers of width 128, without the operator that eager PyTorch swaps in for a whole layer."""
    torch.backends.mha.set_fastpath_enabled(False)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def workloads(device: str, compile_: Callable[[Any], Any]) -> dict[str, Callable[[], Callable[[], Any]]]:
    """By name: a function that prepares a workload on ``device`` and returns its call."""

    def of(f: Callable[[torch.Tensor], Any], *shape: int) -> Callable[[], Any]:
        x, g = torch.randn(*shape).to(device), compile_(f)

        @torch.no_grad()
        def call() -> Any:
            return g(x)

        return call

    def forward() -> Callable[[], Any]:
        torch.manual_seed(0)
        return of(compile_(transformer().eval().to(device)), 2, 32, 128)

    def step() -> Callable[[], Any]:
        torch.manual_seed(0)
        model = transformer().to(device)
        x, g = torch.randn(2, 32, 128).to(device), compile_(model)

        def call() -> None:
            model.zero_grad(set_to_none=True)
            g(x).square().mean().backward()

        return call

    return {
        f"{CHAIN} kernels": lambda: of(chain, 16, 16),
        "1 kernel": lambda: of(one, 16, 16),
        "transformer": forward,
        "forward + backward": step,
    }


def systems() -> dict[str, tuple[str, Callable[[Any], Any], Callable[[], Any]]]:
    """By name: device, how it compiles, how it waits."""

    def vulkan(**options: Any) -> Callable[[Any], Any]:
        return lambda f: torch.compile(f, backend="vulkan", options=options)

    wait = vkinductor.synchronize
    found: dict[str, tuple[str, Callable[[Any], Any], Callable[[], Any]]] = {
        "vulkan recorded": ("vulkan", vulkan(), wait),
    }
    if torch.cuda.is_available():
        cuda = torch.cuda.synchronize
        found["CUDA Inductor"] = ("cuda", torch.compile, cuda)
        found["CUDA Inductor reduce-overhead"] = ("cuda", lambda f: torch.compile(f, mode="reduce-overhead"), cuda)
        found["CUDA eager"] = ("cuda", lambda f: f, cuda)
    found["CPU Inductor"] = ("cpu", torch.compile, lambda: None)
    found["vulkan compiled, not recorded"] = ("vulkan", vulkan(recording=False), wait)
    found["vulkan eager"] = ("vulkan", lambda f: f, wait)
    return found


def floors(seconds: float) -> Iterator[Row]:
    """Chains of trivial dependent dispatches: what the driver and the device ask for so many kernels."""
    from vkinductor.runtime import context
    from vkinductor.runtime.replay.recording import Recording

    device = context.get()
    stream = device.stream
    pipeline = _increment()

    def dispatches(x: int) -> None:
        args, touched = pipeline.pack(x), ((x, 1024),)
        for _ in range(CHAIN):
            stream.dispatch(pipeline, (1, 1, 1), args, touched, touched)

    with stream.captures.on(stream) as capture:
        dispatches(capture.resource(1024))
    address = device.memory.allocate(1024)
    recording = Recording(device, capture, 1, ())
    recording.settle([address], [address])
    binding = recording.bind("floor", capture)
    wait, counters = vkinductor.synchronize, vkinductor.stats
    name = f"{CHAIN} kernels"
    # The recorded floor is what everything is compared with: it comes first.
    yield measure(name, "floor: recorded", lambda: recording.replay(binding, (address,)), wait, counters, seconds)
    row = measure(name, "floor: dispatched one by one", lambda: dispatches(address), wait, counters, seconds)
    if _has_timestamps():
        row.device = statistics.median(_device_time(lambda: dispatches(address)) for _ in range(21))
    yield row


def _increment(loop: int = 1) -> Any:
    """A pipeline that adds to 64 floats, ``loop`` times."""
    from vkinductor.runtime import context
    from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
    from vkinductor.runtime.pipeline import KernelSource

    layout = ArgumentLayout((("x", "ptr"),))
    glsl = (
        "#version 460\n"
        + "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
        + "layout(local_size_x = 64) in;\n"
        "layout(buffer_reference, scalar, buffer_reference_align = 4) buffer F { float v[]; };\n"
        + layout.glsl(inline=True)
        + "void main() {\n    float y = F(ARG.x).v[gl_LocalInvocationID.x];\n"
        + f"    for (int i = 0; i < {loop}; i++) y = y * 0.999 + 1.0;\n"
        "    F(ARG.x).v[gl_LocalInvocationID.x] = y;\n}\n"
    )
    return context.get().pipelines.get(KernelSource("increment", glsl, layout))


def _has_timestamps() -> bool:
    return vkinductor.device_info().limits.timestamp_valid_bits > 0


def _device_time(record: Callable[[], Any]) -> float:
    """Microseconds of the device for what ``record`` dispatches, submitted before the device begins with it.

    A long kernel holds the device up until then: 6 ms or more. A host that needs longer makes the result one of the
    host. The kernel goes in pieces, so that the stream, which sends an idle device its first work early, has submits
    of full length by then.
    """
    from vkinductor.runtime import context

    device = context.get()
    stream = device.stream
    hold = _increment(500_000)
    own = device.memory.allocate(1024)
    stream.synchronize()
    for _ in range(5):
        stream.dispatch(hold, (1, 1, 1), hold.pack(own), ((own, 1024),), ((own, 1024),))
        stream.flush()
    with stream.timed() as timer:
        record()
    stream.flush()
    took = timer.milliseconds * 1000
    device.memory.free(own)
    return took


def steady(seconds: float, show: Callable[[Row], None]) -> None:
    """Every workload on every system."""
    for row in floors(seconds):
        show(row)
    for system, (device, compile_, wait) in systems().items():
        for workload, prepare in workloads(device, compile_).items():
            torch._dynamo.reset()
            try:
                call = prepare()
                row = measure(workload, system, call, wait, vkinductor.stats if device == "vulkan" else None, seconds)
                if device == "vulkan" and system != "vulkan eager" and _has_timestamps():
                    row.device = statistics.median(_device_time(call) for _ in range(11))
                if device == "cuda":
                    row.kernels = _cuda_kernels(call)
                    row.counts["kernels"] = row.kernels
            except Exception as error:
                row = Row(workload, system, note=f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
            show(row)


def _cuda_kernels(call: Callable[[], Any]) -> int:
    """Kernels that a call runs, as torch's profiler sees them, those of CUDA graphs among them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        call()
        torch.cuda.synchronize()
    on_device = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not e.name.startswith(("Memcpy", "Memset")) and not e.is_user_annotation for e in on_device)


# Cold and warm start: a process of its own, from its start to the first result.

_START = """
import sys, time, torch, vkinductor
from benchmarks.overhead import systems, transformer
device, compile_, wait = systems()[sys.argv[1]]
torch.manual_seed(0)
model = compile_(transformer().eval().to(device))
with torch.no_grad():
    model(torch.randn(2, 32, 128).to(device)).cpu()
print("kernels compiled:", vkinductor.stats()["kernels_compiled"])
"""


def starts(show: Callable[[Row], None]) -> None:
    """The transformer's first result in a new process, with empty caches and with those it left."""
    for system, (device, _, _) in systems().items():
        if "eager" in system or "not recorded" in system:
            continue
        if device == "cpu" and not shutil.which("g++"):
            show(Row("cold start", system, note="needs g++"))
            continue
        with tempfile.TemporaryDirectory() as folder:
            caches = {f"{name}_CACHE_DIR": os.path.join(folder, name) for name in ("VKINDUCTOR", "TORCHINDUCTOR")}
            caches["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
            for workload in ("cold start", "warm start"):
                start = time.perf_counter()
                result = subprocess.run(
                    [sys.executable, "-c", _START, system],
                    env={**os.environ, **caches},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                took = (time.perf_counter() - start) * 1e6
                if result.returncode:
                    show(Row(workload, system, note=result.stderr.strip().splitlines()[-1][:80]))
                    break
                show(Row(workload, system, took, took, took, note=result.stdout.strip() if device == "vulkan" else ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    parser.add_argument("--quick", action="store_true", help="shorter measurements")
    parser.add_argument("--no-start", action="store_true", help="leave out cold and warm start")
    arguments = parser.parse_args()
    rows: list[Row] = []

    def show(row: Row) -> None:
        rows.append(row)
        print(table(rows).splitlines()[-1], flush=True)
        if arguments.json:
            save(arguments.json, rows, torch=torch.__version__, device=vkinductor.device_name(), driver=_driver())

    steady(0.3 if arguments.quick else 1.0, show)
    if not arguments.no_start:
        starts(show)
    print(f"\n{vkinductor.device_name()}, {_driver()}, torch {torch.__version__}")
    print(table(rows))
    return 0


def _driver() -> str:
    info = vkinductor.device_info()
    return f"{info.driver_name} {info.driver_info}"


if __name__ == "__main__":
    sys.exit(main())
