"""One system with one model of the decode benchmark, in a process of its own: `python -m benchmarks.decode_worker`.

Owns what a problem is and what is measured of it. It compiles, says "ready", and measures when it is told to, so that
many compile together and are timed one after another. Which systems there are, and tables, are `decode.py`'s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .devices import INT8, OURS, PERSISTENT, CudaInductor, Int8, Persistent, System, Vulkan, has_timestamps
from .llama import FLOAT16, FORMATS, SHAPES, Llama, Shape
from .measure import WARM_UP_S
from .peers.llama_cpp import prompt_tokens

STEPS = 64
PROMPT_TOKENS = 512
DECODE, LOGITS, PROMPT = "decode", "logits", "prompt"
REFERENCE, CUDA = "CPU float32", "CUDA reduce-overhead"


@dataclass(frozen=True)
class Problem:
    """A model, the format of its weights, the length of its cache, which is full but for ``steps`` entries."""

    shape: str
    format: str
    context: int
    steps: int = STEPS
    layers: int | None = None
    prefill: int = PROMPT_TOKENS
    check: bool = True

    @property
    def key(self) -> str:
        """Its name in tables."""
        fewer = f" {self.layers} layers" if self.layers else ""
        return f"{self.shape}{fewer} {self.format} context {self.context}"

    def sizes(self) -> Shape:
        """The model's shape, of fewer layers where that is asked for."""
        shape = SHAPES[self.shape]
        return shape if self.layers is None else replace(shape, layers=self.layers)

    def graphs(self) -> list[str]:
        """What is compiled of the model."""
        return [DECODE, *([LOGITS] if self.check else []), *([PROMPT] if self.prefill else [])]

    def possible(self) -> bool:
        """Whether rows are whole blocks of the format."""
        shape, block = SHAPES[self.shape], 1 if self.format == FLOAT16 else FORMATS[self.format][1]
        return shape.hidden % block == 0 and shape.inner % block == 0

    def model(self) -> Llama:
        """With its weights, on the CPU."""
        return Llama(self.sizes(), self.context, self.format).eval()


@dataclass
class Result:
    """What a system did with a problem. Times are microseconds, None where there is no such clock.

    chained, read: tokens a second. device: of a step, by the device's timestamps. host: of a call on an idle device,
    until it returns. readback: from a device that is done to the token on the host. processor: of all threads, chained
    (on a CPU driver the work itself, whatever else the machine does). bytes: the least that a step reads. counts: a
    step's. prefill: tokens a second. tokens: of the first steps. after_prompt: the token after the prompt. kernels:
    name, times a step, each alone. copy: bytes a second. error: of logits, of the largest, and equal: leading tokens
    that are the same, both beside ours.
    """

    problem: str
    system: str
    chained: float | None = None
    read: float | None = None
    device: float | None = None
    host: float | None = None
    readback: float | None = None
    processor: float | None = None
    bytes: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    prefill: float | None = None
    prefill_device: float | None = None
    tokens: list[int] = field(default_factory=list)
    kernels: list[tuple[str, float, float]] = field(default_factory=list)
    copy: float | None = None
    compile_s: float | None = None
    after_prompt: int | None = None
    error: float | None = None
    equal: int | None = None
    about: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def gigabytes(self) -> float:
        """GB/s of weights and cache, chained."""
        return self.bytes * (self.chained or 0) / 1e9

    @property
    def beyond(self) -> float | None:
        """Microseconds a dispatch beyond the bytes at the bandwidth of a copy."""
        dispatches = self.counts.get("dispatches")
        if not (dispatches and self.device and self.copy):
            return None
        return (self.device - self.bytes / self.copy * 1e6) / dispatches


class Cpu(System):
    """Eager, in float32: what is right."""

    name, device = REFERENCE, "cpu"

    def synchronize(self) -> None: ...

    def span(self, record: Callable[[], Any], host: float) -> float:
        start = time.perf_counter()
        record()
        return (time.perf_counter() - start) * 1e6

    def about(self) -> dict[str, str]:
        return {"torch": torch.__version__}


class CudaGraphs(CudaInductor):
    """torch.compile on CUDA with graphs: the host launches a step at once."""

    name = CUDA

    def about(self) -> dict[str, str]:
        from torch._dynamo.utils import counters

        return {**super().about(), "graphs refused": str(counters["inductor"]["cudagraph_skips"])}


SYSTEMS: dict[str, Callable[[], System]] = {
    OURS: Vulkan,
    PERSISTENT: Persistent,
    INT8: Int8,
    CUDA: CudaGraphs,
    REFERENCE: Cpu,
}


class Worker:
    """A system with a problem's model: compiles ``graphs`` when it is made, measures when it is told to.

    ahead: starts a process that compiles a graph into the caches, while this one compiles the first.
    """

    def __init__(
        self, system: System, problem: Problem, graphs: Sequence[str], ahead: Callable[[str], Any] | None = None
    ) -> None:
        start = time.perf_counter()
        self.system, self.problem = system, problem
        started = {graph: ahead(graph) for graph in graphs[1:]} if ahead else {}
        model = problem.model()
        self.bytes = model.step_bytes()
        device = system.device
        if system.name == REFERENCE:
            model = model.float()
        self.model = model.to(device)
        # Copies of the caches, from which every run of steps begins.
        self.filled = [cache.clone() for cache in self.model.caches()]
        self.first = torch.tensor([[1]], device=device), torch.tensor([problem.context - problem.steps], device=device)
        prompt = torch.tensor([prompt_tokens(problem.prefill)])
        self.prompt = prompt.to(device), torch.arange(problem.prefill, device=device)
        print(f"{system.name}: weights there after {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        self.decode = system.compile_step(self.model.decode)
        self.forward = system.compile_step(self.model.forward)
        self.logits: torch.Tensor | None = None
        for graph in graphs:
            if graph in started:
                started[graph].wait()
            self.compile(graph)
            print(
                f"{system.name}: {graph} ready after {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True
            )
        self.compile_s = time.perf_counter() - start

    def compile(self, graph: str) -> None:
        """The first calls of a graph, in which it is compiled and recorded."""
        self.rewind()
        if graph == DECODE:
            self.read_chain(min(self.problem.steps, 4))
        elif graph == LOGITS:
            self.logits = self.forward(*self.first).float().cpu()
        elif self.system.name != REFERENCE:
            for _ in range(3):
                self.decode_prompt()
            self.system.synchronize()

    def decode_prompt(self) -> Any:
        """The token after the prompt."""
        return self.decode(*self.prompt)

    def rewind(self) -> None:
        """The caches as they were."""
        for cache, filled in zip(self.model.caches(), self.filled, strict=True):
            cache.copy_(filled)

    def chain(self, steps: int) -> torch.Tensor:
        """So many steps, each with the token of the one before; the last token."""
        token, position = self.first
        for _ in range(steps):
            token, position = self.decode(token, position)
        return token

    def read_chain(self, steps: int) -> list[int]:
        """The same, with each token read."""
        token, position = self.first
        tokens = []
        for _ in range(steps):
            token, position = self.decode(token, position)
            tokens.append(int(token.item()))
        return tokens

    def warm_up(self) -> None:
        """Keep the device busy until its clocks are up."""
        start = time.perf_counter()
        while time.perf_counter() - start < WARM_UP_S:
            self.chain(self.problem.steps).item()

    def measure(self, repeats: int) -> Result:
        """Everything there is to measure."""
        system, steps = self.system, self.problem.steps
        result = Result(self.problem.key, system.name, bytes=self.bytes, compile_s=self.compile_s, about=system.about())
        self.rewind()
        if system.name == REFERENCE:
            result.tokens = self.read_chain(min(steps, 16))
            return result
        result.tokens = self.read_chain(steps)
        self.warm_up()
        processor = time.process_time()
        walls = [_timed(lambda: self.chain(steps).item()) for _ in range(repeats)]
        result.processor = (time.process_time() - processor) / (steps * repeats) * 1e6
        result.chained = steps / statistics.median(walls)
        result.read = steps / statistics.median(_timed(lambda: self.read_chain(steps)) for _ in range(repeats))
        before = self.counters()
        self.chain(steps).item()
        result.counts = {k: (v - before[k]) / steps for k, v in self.counters().items() if v != before[k]}
        if has_clock(system):
            spans = [system.span(lambda: self.chain(steps), 2 / result.chained * steps) for _ in range(repeats)]
            result.device = statistics.median(spans) / steps
        result.host, result.readback = self.calls(min(steps, 10 * repeats))
        result.copy = self.copy_bandwidth()
        if self.problem.prefill:
            self.measure_prefill(result, repeats)
        if system.device == OURS and has_clock(system):
            result.kernels = self.kernels()
        return result

    def measure_prefill(self, result: Result, repeats: int) -> None:
        """Tokens a second of the prompt."""
        length = self.problem.prefill
        result.after_prompt = int(self.decode_prompt()[0].item())
        result.prefill = length / statistics.median(
            _timed(lambda: self.decode_prompt()[0].item()) for _ in range(repeats)
        )
        if has_clock(self.system):
            result.prefill_device = self.system.span(self.decode_prompt, 0.01)

    def counters(self) -> dict[str, int]:
        """What the runtime has counted so far; nothing for others."""
        if self.system.device != OURS:
            return {}
        import vkinductor

        return {k: v for k, v in vkinductor.stats().items() if isinstance(v, int)}

    def calls(self, n: int) -> tuple[float, float]:
        """Median microseconds until a call returns on an idle device, and of reading a token that is there."""
        hosts, reads = [], []
        for _ in range(n):
            self.system.synchronize()
            start = time.perf_counter()
            token, _ = self.decode(*self.first)
            hosts.append(time.perf_counter() - start)
            self.system.synchronize()
            reads.append(_timed(token.item))
        return statistics.median(hosts) * 1e6, statistics.median(reads) * 1e6

    def copy_bandwidth(self) -> float:
        """Bytes a second of a copy of 512 MB on a GPU (of 16 MB elsewhere), read and written."""
        n = 1 << (28 if has_clock(self.system) else 23)
        x, y = (torch.ones(n, dtype=torch.float16, device=self.system.device) for _ in range(2))
        return 4.0 * n / self.system.time([lambda: y.copy_(x)], 0.05) * 1e6

    def kernels(self) -> list[tuple[str, float, float]]:
        """Each kernel's name, how often a step runs it, and its median microseconds by itself; the longest first.

        A traced command waits for all before it and runs outside of the recorded program: times are its own.
        """
        from vkinductor.device.registry import registry
        from vkinductor.runtime import trace

        steps = 8
        self.chain(steps).item()
        recorded = trace.start(registry.open().runtime, trace.DEFAULT_LIMIT)
        try:
            self.chain(steps).item()
        finally:
            trace.stop(recorded)
        times: dict[str, list[float]] = {}
        for event in recorded.events:
            times.setdefault(event.name, []).append(event.duration_ns / 1000)
        rows = [(name, len(each) / steps, statistics.median(each)) for name, each in times.items()]
        return sorted(rows, key=lambda row: -row[1] * row[2])


def has_clock(system: System) -> bool:
    """Whether times of ``system``'s device are not the host's."""
    if system.device != OURS:
        return system.device == "cuda"
    import vkinductor

    return has_timestamps() and vkinductor.device_info().kind != "cpu"


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@torch.no_grad()
def main() -> int:
    """Compile, say so, and measure at the word."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("problem", help="its fields as JSON")
    parser.add_argument("folder", type=Path, help="where logits are left")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ahead", action="store_true", help="compile graphs in processes of their own")
    parser.add_argument("--graph", help="compile this one alone")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print must not come between answers
    problem = Problem(**json.loads(arguments.problem))
    system = SYSTEMS[arguments.system]()
    worker = None

    def ahead(graph: str) -> Any:
        line = [sys.executable, "-W", "ignore", "-m", "benchmarks.decode_worker", *sys.argv[1:], "--graph", graph]
        return subprocess.Popen(line, stdin=subprocess.DEVNULL)

    try:
        if arguments.graph:
            Worker(system, problem, [arguments.graph])
            return 0
        worker = Worker(system, problem, problem.graphs(), ahead if arguments.ahead else None)
        if worker.logits is not None:
            torch.save(worker.logits, arguments.folder / f"{system.name}.pt")
        print("ready", file=answers, flush=True)
        if not sys.stdin.readline():  # whoever asked is gone
            return 1
        result = worker.measure(arguments.repeats)
    except Exception as error:
        if worker is None:
            print("ready", file=answers, flush=True)
        lines = str(error).strip().splitlines() or [""]
        result = Result(problem.key, system.name, note=f"{type(error).__name__}: {lines[0][:160]}")
    print(json.dumps(asdict(result)), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
