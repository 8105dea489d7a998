"""What a call costs besides the device's own work: eager, compiled, recorded; cold and warm start.

    python -m benchmarks.overhead [--json FILE] [--quick] [--no-start]

Peers are measured in the same run: Inductor on the CPU, and CUDA's eager mode and Inductor (default and
reduce-overhead) where there is such a card: in a process that does not import vkinductor, since torch has one
accelerator a process. The floors are chains of dependent dispatches: as many of a trivial kernel, recorded and replayed
and one by one, with the device's own time for a chain it had before it began; and the graph's own dispatches with
nothing else, recorded on memory that never moves.
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

from .devices import device_time, has_timestamps, increment
from .measure import Row, load, measure, save, table

CHAIN = 200
RECORDED = "vulkan recorded"


def chain(x: torch.Tensor, kernels: int = CHAIN) -> torch.Tensor:
    """So many kernels, each of which needs all of the last one's result: column and row statistics in turn."""
    for _ in range(kernels // 2):
        x = x - x.mean(0, keepdim=True)
        x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
    return x


def pair(x: torch.Tensor) -> torch.Tensor:
    """The least that is recorded: replaying it is to cost the host no more than launching it."""
    return chain(x, 2)


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
        "2 kernels": lambda: of(pair, 16, 16),
        "1 kernel": lambda: of(one, 16, 16),
        "transformer": forward,
        "forward + backward": step,
    }


System = tuple[str, Callable[[Any], Any], Callable[[], Any]]


def systems() -> dict[str, System]:
    """By name: device, how it compiles, how it waits."""
    import vkinductor

    def vulkan(**options: Any) -> Callable[[Any], Any]:
        return lambda f: torch.compile(f, backend="vulkan", options=options)

    wait = vkinductor.synchronize
    return {
        RECORDED: ("vulkan", vulkan(), wait),
        "CPU Inductor": ("cpu", torch.compile, lambda: None),
        "vulkan compiled, not recorded": ("vulkan", vulkan(recording=False), wait),
        "vulkan eager": ("vulkan", lambda f: f, wait),
    }


def cuda_systems() -> dict[str, System]:
    """The same for CUDA; empty without such a card."""
    if not torch.cuda.is_available():
        return {}
    wait = torch.cuda.synchronize
    return {
        "CUDA Inductor": ("cuda", torch.compile, wait),
        "CUDA Inductor reduce-overhead": ("cuda", lambda f: torch.compile(f, mode="reduce-overhead"), wait),
        "CUDA eager": ("cuda", lambda f: f, wait),
    }


def floors(seconds: float) -> Iterator[Row]:
    """Chains of trivial dependent dispatches: what the driver and the device ask for so many kernels."""
    import vkinductor
    from vkinductor.runtime import context
    from vkinductor.runtime.replay.recording import Recording

    device = context.get()
    stream = device.stream
    pipeline = increment()

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
    if has_timestamps():
        row.device = statistics.median(device_time(lambda: dispatches(address)) for _ in range(21))
    yield row


def own_dispatches(seconds: float) -> Row:
    """The dispatches of the chain that was compiled last and nothing else: pushed arguments, memory that stays."""
    import vkinductor
    from vkinductor.codegen.recording import recordings
    from vkinductor.runtime import context
    from vkinductor.runtime.replay.capture import Pointer
    from vkinductor.runtime.replay.recording import Recording

    device = context.get()
    stream = device.stream
    graph = next(r for r in recordings() if len(r.launches) == CHAIN)
    (binding, *_) = graph.bindings.values()
    with stream.captures.on(stream) as capture:
        at = [capture.resource(nbytes) for nbytes in binding.sizes]
        for launch in graph.launches:
            values = [at[v.resource] + v.offset if isinstance(v, Pointer) else v for v in launch.values]
            reads, writes = (
                tuple((at[a.resource] + a.offset, a.nbytes) for a in accesses)
                for accesses in (launch.reads, launch.writes)
            )
            stream.dispatch(launch.pipeline, launch.groups, launch.pipeline.pack(*values), reads, writes)
    addresses = [device.memory.allocate(nbytes) for nbytes in binding.sizes]
    for address, nbytes in zip(addresses, binding.sizes, strict=True):
        stream.fill(address, nbytes, 0)
    recording = Recording(device, capture, len(addresses), ())
    recording.settle(addresses, addresses)
    bound = recording.bind("own", capture)
    return measure(
        f"{CHAIN} kernels",
        "floor: its own dispatches, recorded",
        lambda: recording.replay(bound, tuple(addresses)),
        vkinductor.synchronize,
        vkinductor.stats,
        seconds,
    )


def steady(seconds: float, show: Callable[[Row], None]) -> None:
    """Every workload on every system."""
    for row in floors(seconds):
        show(row)
    ours = systems()
    rows(RECORDED, ours.pop(RECORDED), seconds, show)
    if cuda_systems():
        _from_process(seconds, show)
    for name, system in ours.items():
        rows(name, system, seconds, show)


def rows(name: str, system: System, seconds: float, show: Callable[[Row], None]) -> None:
    """Every workload on one system."""
    device, compile_, wait = system
    counters = None
    if device == "vulkan":
        import vkinductor

        counters = vkinductor.stats
    for workload, prepare in workloads(device, compile_).items():
        torch._dynamo.reset()
        try:
            call = prepare()
            row = measure(workload, name, call, wait, counters, seconds)
            if device == "vulkan" and name != "vulkan eager" and has_timestamps():
                row.device = statistics.median(device_time(call) for _ in range(11))
            if device == "cuda":
                row.kernels = _cuda_kernels(call)
                row.counts["kernels"] = row.kernels
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            row = Row(workload, name, note=f"{type(error).__name__}: {lines[0][:80]} ... {lines[-1][:80]}")
        show(row)
        if name == RECORDED and row.wall is not None and workload.startswith(str(CHAIN)):
            show(own_dispatches(seconds))


def _from_process(seconds: float, show: Callable[[Row], None]) -> None:
    """The rows of CUDA, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        line = [sys.executable, "-m", "benchmarks.overhead", "--cuda", str(seconds), "--json", path]
        result = subprocess.run(line, capture_output=True, text=True, check=False)
        for row in load(path) if os.path.exists(path) else []:
            show(row)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or [""])[-1]
            show(Row("CUDA", f"exit {result.returncode}", note=last[:160]))


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
import sys, torch
from benchmarks.overhead import cuda_systems, systems, transformer
name = sys.argv[1]
device, compile_, wait = (cuda_systems() if name.startswith("CUDA") else systems())[name]
torch.manual_seed(0)
model = compile_(transformer().eval().to(device))
with torch.no_grad():
    model(torch.randn(2, 32, 128).to(device)).cpu()
if device == "vulkan":
    import vkinductor
    print("kernels compiled:", vkinductor.stats()["kernels_compiled"])
"""


def starts(show: Callable[[Row], None]) -> None:
    """The transformer's first result in a new process, with empty caches and with those it left."""
    for system, (device, _, _) in {**systems(), **cuda_systems()}.items():
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
    parser.add_argument("--cuda", metavar="SECONDS", type=float, help=argparse.SUPPRESS)  # this process is the peer's
    arguments = parser.parse_args()
    found: list[Row] = []
    about: dict[str, Any] = {"torch": torch.__version__}
    if arguments.cuda is None:
        import vkinductor

        about.update(device=vkinductor.device_name(), driver=_driver())

    def show(row: Row) -> None:
        found.append(row)
        print(table(found).splitlines()[-1], flush=True)
        if arguments.json:
            save(arguments.json, found, **about)

    if arguments.cuda is not None:
        for name, system in cuda_systems().items():
            rows(name, system, arguments.cuda, show)
        return 0
    steady(0.3 if arguments.quick else 1.0, show)
    if not arguments.no_start:
        starts(show)
    print(f"\n{', '.join(about.values())}")
    print(table(found))
    return 0


def _driver() -> str:
    import vkinductor

    info = vkinductor.device_info()
    return f"{info.driver_name} {info.driver_info}"


if __name__ == "__main__":
    sys.exit(main())
