"""Every benchmark of speed, or those named, on every system of this machine.

    python -m benchmarks [pointwise norms gemm gemv attention conv models decode] [--json DIR] [--plot] [--quick]

Each system runs in a process of its own, on the same cases; our figure stands beside the peers' of the same run, the
measured copy bandwidth and the ratios. ``--warm N`` compiles everything beforehand in N processes at a time, so that a
borrowed card is not held by compilers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .cases import Case, Result, plot, read, table, write
from .devices import OURS, SYSTEMS, System, available

MODULES = ("pointwise", "norms", "gemm", "gemv", "attention", "conv", "models", "decode")
# One system's whole run; a driver that hangs must not hold the others.
LIMIT_S = 3600


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


def run(system: System, cases: list[Case], seconds: float) -> Iterator[Result]:
    """Every case on one system, ceilings first; what fails is a result with the reason."""
    for case in cases:
        torch._dynamo.reset()
        torch.manual_seed(0)
        result = Result(case.key, system.name, None, case.nbytes, case.flops, case.targets)
        try:
            compile_ = how(system, case)
            result.us = system.time(case.calls(compile_, system.device), seconds) / case.inner
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            result.note = f"{type(error).__name__}: {lines[0][:120]}"
        yield result


def compile_only(system: System, cases: list[Case]) -> None:
    """One call of each, which leaves what was compiled in the caches."""
    for case in cases:
        torch._dynamo.reset()
        try:
            case.calls(how(system, case), system.device)[0]()
            system.synchronize()
        except Exception as error:
            print(f"{case.key}: {type(error).__name__}", file=sys.stderr)


def _child(arguments: argparse.Namespace) -> int:
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # the backward of one forward is timed again and again
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    system = SYSTEMS[arguments.system]()
    cases = selected(arguments.modules, arguments.only, arguments.quick)
    if arguments.shard:
        part, parts = map(int, arguments.shard.split("/"))
        compile_only(system, cases[part::parts])
        return 0
    print(json.dumps({"about": system.about()}), flush=True)
    for result in run(system, [copy_case(), *cases], 0.05 if arguments.quick else 0.2):
        print(json.dumps({"result": asdict(result)}), flush=True)
    return 0


def _line(arguments: argparse.Namespace, system: str) -> list[str]:
    line = [sys.executable, "-W", "ignore", "-m", "benchmarks", *arguments.modules, "--system", system]
    return [*line, "--only", arguments.only, *(["--quick"] if arguments.quick else [])]


def warm(arguments: argparse.Namespace, systems: list[str]) -> None:
    """Compile every case for every system, ``--warm`` processes at a time."""
    running = [
        subprocess.Popen([*_line(arguments, system), "--shard", f"{i}/{arguments.warm}"])
        for i in range(arguments.warm)
        for system in systems
        if system != "CUDA eager"
    ]
    for process in running:
        process.wait(LIMIT_S)


def collect(arguments: argparse.Namespace, system: str) -> tuple[dict[str, str], list[Result]]:
    """A system's results from its process; what a process that died left out is a result with the reason."""
    about: dict[str, str] = {}
    results: list[Result] = []
    with subprocess.Popen(_line(arguments, system), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            about = line.get("about", about)
            if "result" in line:
                results.append(Result(**line["result"]))
                shown = results[-1]
                time = f"{shown.us:10.1f} us" if shown.us is not None else shown.note
                print(f"{system:14} {shown.case:64} {time}", flush=True)
    if process.returncode:
        results.append(Result(f"process: exit {process.returncode}", system, None, 0, 0, {}, "the process ended"))
    return about, results


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
    parser.add_argument("--warm", metavar="N", type=int, default=0, help="compile beforehand in N processes")
    parser.add_argument("--system", choices=list(SYSTEMS), help=argparse.SUPPRESS)
    parser.add_argument("--shard", help=argparse.SUPPRESS)
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
    systems = available()
    if arguments.warm:
        warm(arguments, systems)
    results, about = [], {}
    for system in systems:
        about[system], found = collect(arguments, system)
        results += found
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
