"""`python -m vkinductor tune`: measure kernels for a program or for problems named on the command line.

Owns arguments, progress and the printed table. Measuring and storing are codegen/tuning's; the HTML is tune_report's.
What is stored already is shown and not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vkinductor.cli.output import show
from vkinductor.cli.progress import Progress
from vkinductor.cli.tune_problems import SPECS, Spec

_BAR = 20


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command; everything behind SCRIPT is the script's."""
    add = parser.add_argument
    for spec in SPECS:
        add(spec.option, type=spec.parse, action="append", default=[], metavar=spec.metavar, help=spec.help)
    add("--seconds", type=_seconds, default=10.0, metavar="S", help="at most, about, for each problem (default 10)")
    add("--force", action="store_true", help="measure what is stored, too, and replace it (not for SCRIPT)")
    add("--json", type=Path, metavar="FILE", help="write the results to FILE ('-': stdout, instead of the tables)")
    add("--report", type=Path, metavar="FILE", help="draw every candidate beside the device's ceilings, an HTML file")
    add("script", metavar="SCRIPT", nargs="?", help="a program; every torch.compile in it is done with max-autotune")
    add("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    """0: done; 1: a typed error, or a problem that no candidate computes; 2: the arguments make no sense.

    SCRIPT's own exit code where it is not 0.
    """
    from vkinductor.runtime.errors import VulkanError

    mistake = _mistake(arguments)
    if mistake:
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    try:
        code, report = _act(arguments)
    except VulkanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    show(report, arguments.json, describe)
    if arguments.report is not None:
        from vkinductor.cli import tune_report

        arguments.report.write_text(tune_report.page(report))
    return code


def _mistake(arguments: argparse.Namespace) -> str:
    """What is wrong with arguments that parse."""
    problems = _problems(arguments)
    options = [spec.option for spec in SPECS]
    if arguments.script is None and not problems:
        return f"nothing to tune: name a program, or a problem with {', '.join(options[:-1])} or {options[-1]}"
    if arguments.script is not None and not Path(arguments.script).is_file():
        return f"there is no program {arguments.script}"
    if arguments.force and not problems:
        return f"--force goes with problems ({', '.join(options)})"
    for option in ("json", "report"):
        path = getattr(arguments, option)
        if path is not None and str(path) != "-" and not path.resolve().parent.is_dir():
            return f"--{option}: the folder of {path} does not exist"
    return ""


def _act(arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    import vkinductor
    from vkinductor.codegen.tuning.results import results
    from vkinductor.codegen.tuning.tuner import NothingWorksError
    from vkinductor.device.registry import registry
    from vkinductor.runtime.stats import counters

    vkinductor.register()
    registry.open()
    before, code = counters.timings, 0
    known = results()
    known.seen.clear()
    missing: list[str] = []
    for family, problem in (found for spec in _problems(arguments) for found in spec.problems()):
        try:
            why = _missing(family, problem, arguments)
        except NothingWorksError as error:
            why, code = str(error), 1
        if why:
            missing.append(why)
    if arguments.script is not None:
        with _searching(arguments.seconds):
            code = _run(Path(arguments.script), arguments.arguments) or code
    return code, {
        **_about(known.device),
        "timings": counters.timings - before,
        "problems": [_described(result) for result in known.seen.values()],
        "not_tuned": missing,
        "ceilings": _ceilings(known),
    }


def _problems(arguments: argparse.Namespace) -> list[Spec]:
    """Everything named on the command line."""
    return [made for spec in SPECS for made in getattr(arguments, spec.option.strip("-"))]


def _missing(family: Any, problem: Any, arguments: argparse.Namespace) -> str:
    """Have a result of the problem, measured now unless it is stored; why there is none."""
    from vkinductor.codegen.tuning.results import results
    from vkinductor.codegen.tuning.tuner import tune

    known = results()
    if not arguments.force and known.find(family, family.bucket(problem)) is not None:
        return ""
    if arguments.force:
        known.suspect(family, family.bucket(problem), set())
    state = ""

    def listener(done: int, total: int, what: str) -> None:
        nonlocal state
        filled = _BAR * done // max(total, 1)
        state = f"[{'#' * filled}{'.' * (_BAR - filled)}] {done} of {total}, {what}"

    name = f"{family.name} {family.bucket(problem)}"
    with Progress(detail=lambda: state).stage(name):
        result = tune(family, problem, arguments.seconds, listener)
    if result is None:
        return f"{name}: there is one candidate on this device"
    known.add(family, result)
    return ""


@contextlib.contextmanager
def _searching(seconds: float) -> Iterator[None]:
    """Every compilation inside searches, without graph caches, which would hide problems, and says what it finds."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    from vkinductor.codegen import compat

    compat.add_settings()
    settings = {"vulkan.tune": True, "vulkan.tuning_seconds": seconds, "vulkan.tuning_problems": 1_000_000}
    logger = logging.getLogger("vkinductor.codegen.tuning")
    handler = logging.StreamHandler(sys.stderr)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with inductor.patch({**settings, "force_disable_caches": True}), functorch.patch(enable_autograd_cache=False):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _run(script: Path, arguments: list[str]) -> int:
    from vkinductor.cli.warm import run_script

    return run_script(script, arguments)


def _about(device: Any) -> dict[str, Any]:
    import torch

    info = device.info
    driver = f"{info.driver_name} {info.driver_info}".strip()
    return {"device": info.name, "driver": driver, "torch": torch.__version__}


def _described(result: Any) -> dict[str, Any]:
    base = result.row(result.baseline)
    rows = [_described_row(result, row, base) for row in result.rows]
    return {
        "family": result.family,
        "problem": str(result.bucket),
        "choice": result.choice,
        "heuristic": result.baseline,
        "complete": result.complete,
        "nbytes": result.nbytes,
        "flops": result.flops,
        "candidates": sorted(rows, key=lambda row: (row["us"] is None, row["us"] or 0.0)),
    }


def _described_row(result: Any, row: Any, base: Any) -> dict[str, Any]:
    made = {"candidate": row.label, "status": row.status, "us": row.time, "detail": row.detail}
    made["independent_us"] = row.independent
    if row.time:
        made["gb_s"] = result.nbytes / row.time * 1e-3
        made["tflop_s"] = result.flops / row.time * 1e-6
        if base is not None and base.mean:
            made["of_heuristic"] = base.mean / row.mean
    return made


def _ceilings(known: Any) -> dict[str, Any]:
    """Copy bandwidth in GB/s; the best rate of a matrix product in TFLOP/s, by dtype."""
    from vkinductor.codegen.tuning import ceilings
    from vkinductor.codegen.tuning.gemm import GEMM

    copy = ceilings.copy_bandwidth(known.device)
    rates: dict[str, float] = {}
    for result in list(known.seen.values()):
        dtype = result.bucket.kind.split()[0]
        rate = ceilings.best_rate(known, GEMM, dtype)
        if rate is not None:
            rates[dtype] = rate * 1e-12
    return {"copy_gb_s": None if copy is None else copy * 1e-9, "tflop_s": rates}


def describe(report: dict[str, Any]) -> str:
    """The report as tables for people."""
    lines = [f"{report['device']}, {report['driver']}, torch {report['torch']}"]
    ceilings = report["ceilings"]
    if ceilings["copy_gb_s"]:
        lines.append(f"copy: {ceilings['copy_gb_s']:.1f} GB/s")
    for dtype, rate in ceilings["tflop_s"].items():
        lines.append(f"best matrix rate so far, {dtype}: {_number(rate)} TFLOP/s")
    for problem in report["problems"]:
        lines += ["", *_table(problem)]
    lines += [f"not tuned: {what}" for what in report["not_tuned"]]
    known = "" if report["timings"] or report["not_tuned"] else ": everything was known"
    lines += ["", f"{report['timings']} timings{known}"]
    return "\n".join(lines)


def _table(problem: dict[str, Any]) -> list[str]:
    heads = "          us independent   TFLOP/s      GB/s   speed  candidate"
    lines = [f"{problem['family']} {problem['problem']}", heads]
    for row in problem["candidates"]:
        if row["status"] == "late":
            continue
        notes = [
            note for note, of in (("chosen", "choice"), ("heuristic", "heuristic")) if row["candidate"] == problem[of]
        ]
        name = row["candidate"] + (f" ({', '.join(notes)})" if notes else "")
        if row["us"] is None:
            what = f"{row['status']}: {row['detail']}" if row["detail"] else row["status"]
            lines.append(f"{'-':>12} {'-':>11} {'-':>9} {'-':>9} {'-':>7}  {name}: {what}")
            continue
        speed = f"{row['of_heuristic']:.2f}" if "of_heuristic" in row else "-"
        apart = f"{row['independent_us']:.1f}" if row.get("independent_us") is not None else "-"
        rates = f"{_number(row['tflop_s']):>9} {_number(row['gb_s']):>9}"
        lines.append(f"{row['us']:12.1f} {apart:>11} {rates} {speed:>7}  {name}")
    late = sum(row["status"] == "late" for row in problem["candidates"])
    if late:
        lines.append(f"  no time was left for {late} more: raise --seconds and use --force")
    return lines


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"
