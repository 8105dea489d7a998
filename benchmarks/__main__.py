"""Every benchmark of speed, or those named, on every system of this machine.

    python -m benchmarks [pointwise norms gemm gemv layers attention conv models decode] [--json DIR] [--plot] [--quick]

Each system runs in a process of its own, on the same cases; our figure stands beside the peers' of the same run, the
measured copy bandwidth and the ratios. With ``--ahead N`` it runs in N of them, each with its share of the cases: all
compile together, and are timed in turn when the last is ready, so that a borrowed card is not held by compilers.

The default is timed. `python -m benchmarks.tuning` times what max-autotune makes of some of the cases beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .cases import Case, Result, plot, read, table, write
from .devices import OURS, SYSTEMS, System, available

MODULES = ("pointwise", "norms", "gemm", "gemv", "layers", "attention", "conv", "models", "decode")
# What a process says that has compiled all.
READY = "ready"


def copy_case() -> Case:
    """The ceiling of everything that is not arithmetic: a device copy of 512 MB."""
    n = 1 << 28

    def inputs(device: str) -> list[torch.Tensor]:
        return [torch.zeros(n, dtype=torch.float16, device=device), torch.ones(n, dtype=torch.float16, device=device)]

    return Case("ceiling", "copy 512 MB", lambda y, x: y.copy_(x), inputs, nbytes=4.0 * n)


def selected(modules: list[str], pattern: str, quick: bool) -> list[Case]:
    """The cases of ``modules`` whose names hold ``pattern`` (a regular expression)."""
    found = [case for name in modules for case in importlib.import_module(f"benchmarks.{name}").cases(quick)]
    return [case for case in found if re.search(pattern, case.key)]


def how(system: System, case: Case) -> Callable[[Any], Any]:
    """How ``system`` compiles ``case``."""
    if case.group == "ceiling":
        return lambda function: function
    ways = {"models": system.compile_whole, "decode": system.compile_step}
    return ways.get(case.group, system.compile)


def run(
    system: System, cases: list[Case], seconds: float, ways: dict[str, Callable[[Any], Any]] | None = None
) -> Iterator[Result]:
    """Every case on one system; what fails is a result with the reason. ``ways``: of `prepare`."""
    for case in cases:
        if ways is None:
            torch._dynamo.reset()
        torch.manual_seed(0)
        result = Result(case.key, system.name, None, case.nbytes, case.flops, case.targets)
        try:
            compile_ = (ways or {}).get(case.key) or how(system, case)
            result.us = system.time(case.calls(compile_, system.device), seconds) / case.inner
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            result.note = f"{type(error).__name__}: {lines[0][:120]}"
        yield result


def prepare(system: System, cases: list[Case]) -> dict[str, Callable[[Any], Any]]:
    """By case: how to compile it, which has been done. What fails will fail again when it is timed."""
    ways = {}
    for case in cases:
        ways[case.key] = once(how(system, case))
        with contextlib.suppress(Exception):
            case.calls(ways[case.key], system.device, most=1)[0]()
            system.synchronize()
    return ways


def once(compile_: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``compile_`` of the first function that it is given, whichever is."""
    made: list[Any] = []

    def first(function: Any) -> Any:
        if not made:
            made.append(compile_(function))
        return made[0]

    return first


def _child(arguments: argparse.Namespace) -> int:
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # the backward of one forward is timed again and again
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    system = SYSTEMS[arguments.system]()
    part, parts = map(int, arguments.shard.split("/"))
    cases = selected(arguments.modules, arguments.only, arguments.quick)[part::parts]
    ways = None
    if arguments.ahead:
        ways = prepare(system, cases)
        print(READY, flush=True)
        if not sys.stdin.readline():
            return 1  # nobody is left who would read the results
    print(json.dumps({"about": system.about()}), flush=True)
    cases = [*([copy_case()] if part == 0 else []), *cases]
    for result in run(system, cases, 0.05 if arguments.quick else 0.2, ways):
        print(json.dumps({"result": asdict(result)}), flush=True)
    print(json.dumps({"done": True}), flush=True)  # the next need not wait until this process has ended
    return 0


def start(arguments: argparse.Namespace, system: str, part: int = 0, parts: int = 1) -> subprocess.Popen[str]:
    """The process that measures ``system`` on every ``parts``-th case from the ``part``-th on."""
    line = [sys.executable, "-W", "ignore", "-m", "benchmarks", *arguments.modules, "--system", system]
    line += ["--only", arguments.only, "--shard", f"{part}/{parts}", *(["--quick"] if arguments.quick else [])]
    line += ["--ahead", str(arguments.ahead)]
    # A pool of compilers in each of many processes would have them wait for each other.
    environment = {**os.environ, **({"TORCHINDUCTOR_COMPILE_THREADS": "1"} if arguments.ahead else {})}
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def lines(process: subprocess.Popen[str], system: str) -> Iterator[dict[str, Any]]:
    """What a process tells of ``system``; one that died tells of a result with the reason last."""
    assert process.stdout is not None
    for text in process.stdout:
        line = json.loads(text) if text.startswith("{") else {}
        if "done" in line:
            return
        if line:
            yield line
    reason = Result(f"process: exit {process.wait()}", system, None, 0, 0, {}, "the process ended")
    yield {"result": asdict(reason)}


def collect(arguments: argparse.Namespace, systems: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(system, what it tells) of all: one system after the other, or, with ``ahead``, shares of the cases."""
    if not arguments.ahead:
        for system in systems:
            with start(arguments, system) as process:
                yield from ((system, line) for line in lines(process, system))
        return
    shares = [(part, system) for part in range(arguments.ahead) for system in systems]
    began = time.monotonic()
    with contextlib.ExitStack() as running:
        started = [running.enter_context(start(arguments, system, part, arguments.ahead)) for part, system in shares]
        for process in started:
            assert process.stdout is not None
            while process.stdout.readline().strip() not in (READY, ""):
                pass
        print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
        for (_, system), process in zip(shares, started, strict=True):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                os.write(process.stdin.fileno(), b"go\n")
            yield from ((system, line) for line in lines(process, system))


def shown(result: Result, results: list[Result]) -> str:
    """A result as a line; of a peer's, its ratio to ours."""
    text = f"{result.us:10.1f} us" if result.us is not None else result.note
    ours = next((r.us for r in results if r.case == result.case and r.system == OURS), None)
    ratio = f"  {result.us / ours:6.2f}" if result.us and ours and result.system != OURS else ""
    return f"{result.system:14} {result.case:64} {text}{ratio}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", metavar="BENCHMARK", help=f"of {', '.join(MODULES)} (default: all)")
    parser.add_argument("--json", metavar="DIR", type=Path, help="write results, tables and plots there")
    parser.add_argument("--plot", action="store_true", help="draw SVGs (needs matplotlib: extra bench)")
    parser.add_argument("--from", dest="source", metavar="DIR", type=Path, help="show the results written there")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases, shorter measurements")
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose names hold it")
    parser.add_argument("--against", metavar="REGEX", default="", help="peers whose names hold it")
    parser.add_argument("--ahead", metavar="N", type=int, default=0, help="compile beforehand in N processes a system")
    parser.add_argument("--system", choices=list(SYSTEMS), help=argparse.SUPPRESS)
    parser.add_argument("--shard", default="0/1", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.modules = arguments.modules or list(MODULES)
    unknown = set(arguments.modules) - set(MODULES)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    if arguments.system:
        return _child(arguments)
    if arguments.source:
        results, about = read(arguments.source / "results.json")
        print(table(results))
        if arguments.plot:
            plot(arguments.source / "results.svg", results, str(about.get(OURS)))
        return 0
    systems = [name for name in available() if name == OURS or re.search(arguments.against, name)]
    results: list[Result] = []
    about: dict[str, Any] = {}
    began = time.monotonic()
    for system, line in collect(arguments, systems):
        about[system] = line.get("about", about.get(system, {}))
        if "result" not in line:
            continue
        results.append(Result(**line["result"]))
        print(f"{time.monotonic() - began:6.0f} s  {shown(results[-1], results)}", flush=True)
        if arguments.json:
            arguments.json.mkdir(parents=True, exist_ok=True)
            write(arguments.json / "results.json", results, about)
    text = table(results)
    print(f"\n{json.dumps(about)}\n\n{text}")
    if arguments.json:
        (arguments.json / "results.md").write_text(text + "\n")
        if arguments.plot:
            plot(arguments.json / "results.svg", results, about[OURS].get("device", ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
