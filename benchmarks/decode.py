"""Decoding with a llama, a token at a time: tokens a second, bytes a second, and what a step costs besides its bytes.

    python -m benchmarks.decode [--shape llama-1.1B ...] [--format float16 ...] [--context 512 ...] [--json FILE]

The same plain PyTorch code (`llama.py`) runs through ``torch.compile(backend="vulkan")`` and, where there is such a
card, ``torch.compile(mode="reduce-overhead")`` on CUDA; the same weights as a GGUF file run in llama.cpp's Vulkan build
where ``--llama-cpp PYTHON`` has it (`peers/llama_cpp.py`). Each system has a process of its own. They compile together
and are timed one after another, so that all meet the same card. Without CUDA, the CPU in float32 says what is right.

*chained*: a step's token is the next one's argument on the device, and one token is read at the end. *read*: every
token is read before the next step, as a program that prints them does.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .cases import Case
from .decode_worker import CUDA, PROMPT_TOKENS, REFERENCE, STEPS, Problem, Result
from .devices import INT8, OURS, PERSISTENT
from .llama import FLOAT16, FORMATS, SHAPES, Llama
from .measure import save
from .peers import llama_cpp
from .peers.llama_cpp import NAME as LLAMA_CPP

CONTEXTS = (512, 8192)
# A model on one system: weights, compiling, and what is measured.
LIMIT_S = 1800.0
# The weights for llama.cpp.
FILE = "model.gguf"


def systems(arguments: argparse.Namespace, problem: Problem, folder: Path) -> dict[str, list[str]]:
    """The systems that a problem runs on, with their workers' command lines."""
    names = [OURS, *([PERSISTENT] if arguments.persistent else [])]
    names += [INT8] if arguments.int8_activations and problem.format != FLOAT16 else []
    if torch.cuda.is_available() and problem.format == FLOAT16:
        names.append(CUDA)
    elif not torch.cuda.is_available() and not arguments.no_reference:
        names.append(REFERENCE)
    line = [sys.executable, "-W", "ignore", "-m", "benchmarks.decode_worker"]
    options = [json.dumps(asdict(problem)), str(folder), "--repeats", str(arguments.repeats)]
    options += ["--ahead"] if arguments.ahead else []
    found = {name: [*line, name, *options] for name in names}
    if arguments.llama_cpp:
        gguf = folder / FILE
        found[LLAMA_CPP] = [arguments.llama_cpp, "-m", "benchmarks.peers.llama_cpp", str(gguf)]
        found[LLAMA_CPP] += [problem.key, str(problem.context), str(problem.steps), str(problem.prefill)]
    return {name: line for name, line in found.items() if re.search(arguments.system, name)}


def collect(arguments: argparse.Namespace, problem: Problem) -> Iterator[Result]:
    """A problem on all systems: they compile at once, and have their turns after that."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        started: dict[str, subprocess.Popen[str]] = {}
        for name, line in systems(arguments, problem, folder).items():
            if name == LLAMA_CPP:
                llama_cpp.write(problem.model(), folder / FILE)
            started[name] = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for process in started.values():
            assert process.stdout is not None
            process.stdout.readline()
        results: list[Result] = []
        for name, process in started.items():
            try:
                answer, _ = process.communicate("go\n", LIMIT_S)
                results.append(Result(**json.loads(answer)))
            except (ValueError, TypeError, BrokenPipeError):
                results.append(Result(problem.key, name, note=f"the process ended: exit {process.wait()}"))
            compare(results[-1], results, folder)
            yield results[-1]


def compare(peer: Result, results: Sequence[Result], folder: Path) -> None:
    """A peer's logits and tokens against ours, where both have some."""
    ours = next((r for r in results if r.system == OURS), peer)
    if peer is ours:
        return
    pairs = list(zip(ours.tokens, peer.tokens, strict=False))
    if pairs:
        peer.equal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    paths = [folder / f"{r.system}.pt" for r in (ours, peer)]
    if all(path.exists() for path in paths):
        a, b = (torch.load(path) for path in paths)
        peer.error = float((a - b).abs().max() / b.abs().max())
    if peer.after_prompt is not None and ours.after_prompt not in (None, peer.after_prompt):
        peer.note = f"after the prompt it has token {peer.after_prompt}, we {ours.after_prompt}"


def table(results: Sequence[Result]) -> str:
    """Markdown: a line for each problem and system; ratios are ours over the peer's tokens a second."""
    heads = [
        "problem",
        "system",
        "tok/s chained",
        "tok/s read",
        "GB/s",
        "ours / it",
        "step us",
        "CPU us",
        "device us",
        "host us",
    ]
    heads += ["readback us", "dispatches", "submits", "barriers", "us beyond bytes", "prefill tok/s", "logits", "equal"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    ours = {r.problem: r for r in results if r.system == OURS}

    def number(value: float | None, digits: int = 1) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    for r in results:
        if not (r.chained or r.tokens):
            lines.append(f"| {r.problem} | {r.system} | {r.note} |")
            continue
        own = ours.get(r.problem)
        ratio = own.chained / r.chained if own and own is not r and own.chained and r.chained else None
        counts = [number(r.counts.get(k), 2) for k in ("dispatches", "submits", "barriers")]
        columns = [r.problem, r.system, number(r.chained), number(r.read), number(r.gigabytes, 0) if r.chained else ""]
        columns += [number(ratio, 2), number(1e6 / r.chained if r.chained else None), number(r.processor, 0)]
        columns += [
            number(r.device),
            number(r.host),
            number(r.readback),
            *counts,
            number(r.beyond, 2),
            number(r.prefill, 0),
        ]
        columns += ["" if r.error is None else f"{r.error:.1e}", "" if r.equal is None else str(r.equal)]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def kernel_table(result: Result, longest: int = 12) -> str:
    """The kernels of our step by themselves."""
    total = sum(times * us for _, times, us in result.kernels)
    lines = [f"{result.problem}: {total:.0f} us of kernels by themselves, {result.device or 0:.0f} us a step"]
    for name, times, us in result.kernels[:longest]:
        lines.append(f"{times * us:9.1f} us  {times:6.1f} x {us:8.2f} us  {name}")
    return "\n".join(lines)


@dataclass(frozen=True)
class _StepCase(Case):
    """A model is too large for several: its one call reads all of it."""

    def calls(self, compile_: Callable[[Any], Any], device: str, most: int = 1) -> list[Callable[[], Any]]:
        model, *args = self.inputs(device)
        return [self._call(compile_(model.decode), args)]


def cases(quick: bool) -> Iterator[Case]:
    """One step in float16 at the end of a context, for `python -m benchmarks`."""
    for shape in ("SmolLM2-135M",) if quick else tuple(SHAPES):
        for context in CONTEXTS[: 1 if quick else None]:
            problem = Problem(shape, FLOAT16, context, layers=2 if quick else None)
            sizes = problem.sizes()
            matrices = sizes.layers * (
                2 * sizes.hidden * sizes.head * (sizes.heads + sizes.kv_heads) + 3 * sizes.hidden * sizes.inner
            )
            cache = 2 * sizes.layers * context * sizes.kv_heads * sizes.head

            def inputs(device: str, problem: Problem = problem) -> list[Any]:
                first = torch.tensor([[1]], device=device), torch.tensor([problem.context - 1], device=device)
                return [problem.model().to(device), *first]

            nbytes = 2.0 * (matrices + cache + sizes.hidden * sizes.vocabulary)
            yield _StepCase("decode", problem.key, Llama.decode, inputs, nbytes)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--format", nargs="+", default=[FLOAT16, "Q4_0", "Q4_K", "Q8_0"], choices=[FLOAT16, *FORMATS])
    parser.add_argument("--context", nargs="+", type=int, default=list(CONTEXTS))
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a run, at the end of the context")
    parser.add_argument(
        "--prefill", type=int, default=PROMPT_TOKENS, help="tokens of the prompt; 0: it is not measured"
    )
    parser.add_argument("--repeats", type=int, default=9, help="of each measurement, whose median counts")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="a Python that has cyllama-vulkan")
    parser.add_argument("--no-reference", action="store_true", help="without CUDA: no float32 on the CPU")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--persistent", action="store_true", help="also a step as one persistent kernel")
    parser.add_argument(
        "--int8-activations", action="store_true", help="also with activations in 8 bits at GGUF weights"
    )
    parser.add_argument("--system", metavar="REGEX", default="", help="systems whose names hold it")
    parser.add_argument("--ahead", action="store_true", help="compile a model's graphs in processes of their own")
    parser.add_argument("--no-check", action="store_true", help="without the logits' error")
    parser.add_argument("--quick", action="store_true", help="two layers of the smallest shape, short")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.shape, arguments.format, arguments.context = ["SmolLM2-135M"], [FLOAT16], [64]
        arguments.layers, arguments.steps, arguments.prefill, arguments.repeats = 2, 8, 16, 2
    sizes = (arguments.steps, arguments.layers, arguments.prefill, not arguments.no_check)
    problems = [Problem(s, f, c, *sizes) for s in arguments.shape for f in arguments.format for c in arguments.context]
    results: list[Result] = []
    for problem in problems:
        if not problem.possible():
            print(f"{problem.key}: rows are no whole blocks of the format")
            continue
        for result in collect(arguments, problem):
            results.append(result)
            rate = result.note or f"{result.chained or 0:8.1f} tok/s"
            print(f"{result.problem:44} {result.system:22} {rate}", flush=True)
            if result.kernels:
                print(kernel_table(result), flush=True)
            if arguments.json:
                save(arguments.json, results, torch=torch.__version__)
    print(f"\n{table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
