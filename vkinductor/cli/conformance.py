"""`python -m vkinductor conformance`: every operator of torch's catalogue against the CPU."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from vkinductor.cli.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("entries", nargs="*", metavar="ENTRY", help="names of entries (default: all); * matches any")
    parser.add_argument("--dtypes", default="", help="comma-separated (default: all that an entry has)")
    parser.add_argument("--variants", default="", help="of eager,static,dynamic,backward (default: all)")
    parser.add_argument("--samples", type=_positive, default=None, metavar="N", help="at most so many of an entry")
    parser.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="I/N", help="the I-th of N parts of the entries"
    )
    parser.add_argument("--workers", type=_positive, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="for an entry in a dtype")
    parser.add_argument("--fast", action="store_true", help="the fixed small choice of entries that CI checks")
    parser.add_argument(
        "--today",
        type=_positive,
        metavar="N",
        help="one of N parts, another each day (with --fast: both)",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="begin nothing after that time")
    parser.add_argument(
        "--devices", default="", metavar="D,...", help="values of VKINDUCTOR_DEVICE that the workers take turns with"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="results, a line for each; a run goes on where it ended"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table of all results in the log there")


def run(arguments: argparse.Namespace) -> int:
    """0: nothing is wrong, crashes or fails without a reason that is listed; 1: something does; 2: bad arguments."""
    try:
        from vkinductor.conformance import groups, report, samples
        from vkinductor.conformance.entry import NAMES
        from vkinductor.conformance.pool import Task
        from vkinductor.conformance.pool import run as run_tasks

        names = _select(samples.names(), arguments.entries)
        if arguments.fast or arguments.today:
            of_the_day = groups.of_the_day(names, arguments.today) if arguments.today else []
            names = list(dict.fromkeys([*(n for n in groups.FAST if arguments.fast and n in names), *of_the_day]))
    except ModuleNotFoundError as error:
        print(f"conformance needs torch's testing parts: {error}; pip install 'vkinductor[dev]'", file=sys.stderr)
        return 2
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    part, parts = arguments.shard
    names = names[part - 1 :: parts]
    try:
        wanted = _listed(arguments.dtypes, list(NAMES), "dtype")
        variants = tuple(_listed(arguments.variants, list(_variants()), "variant"))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    about = _about(arguments.samples, variants)
    log = None
    try:
        log = report.Log(arguments.log, about) if arguments.log else None
    except (report.ReportError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    results: report.Results = dict(log.results) if log else {}
    tasks = [
        Task(name, dtype, variants, arguments.samples)
        for name in names
        for dtype in (str(d).removeprefix("torch.") for d in samples.entry(name).dtypes)
        if dtype in wanted and (name, dtype) not in results
    ]
    mine: report.Results = {}

    def done(task: Task, found: dict[str, dict[str, object]]) -> None:
        mine[task.entry, task.dtype] = found
        if log is not None:
            log.add(task.entry, task.dtype, found)
        for variant, verdict in found.items():
            if report.is_bad(task.entry, verdict):
                print(f"{task.entry} {task.dtype} {variant}: {verdict['verdict']}: {verdict['detail']}", flush=True)

    with Progress(detail=lambda: f"{len(mine)} of {len(tasks)}").stage("checking entries"):
        devices = [name.strip() for name in arguments.devices.split(",") if name.strip()]
        run_tasks(tasks, arguments.workers, arguments.timeout, done, devices=devices, seconds=arguments.seconds)
    if log is not None:
        log.close()
    results |= mine
    found = report.counts(results)
    print(", ".join(f"{verdict}: {count}" for verdict, count in found.most_common()))
    if arguments.markdown:
        arguments.markdown.write_text(report.table(about, results))
    return int(any(report.is_bad(entry, v) for (entry, _), vs in results.items() for v in vs.values()))


def _about(limit: int | None, variants: tuple[str, ...]) -> dict[str, object]:
    import torch

    import vkinductor

    info = vkinductor.device_info()
    return {
        "device": info.name,
        "driver": f"{info.driver_name} {info.driver_info}",
        "torch": torch.__version__,
        "variants": ", ".join(variants),
        "samples": "all" if limit is None else f"at most {limit} of an entry, and one that is not contiguous",
    }


def _variants() -> tuple[str, ...]:
    from vkinductor.conformance.check import VARIANTS

    return VARIANTS


def _select(names: list[str], patterns: list[str]) -> list[str]:
    from fnmatch import fnmatchcase

    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no entry is called {pattern!r}")
    return [name for name in names if not patterns or any(fnmatchcase(name, p) for p in patterns)]


def _listed(text: str, valid: list[str], what: str) -> list[str]:
    chosen = [word.strip() for word in text.split(",") if word.strip()] or valid
    for word in chosen:
        if word not in valid:
            raise ValueError(f"unknown {what} {word!r}: choose of {', '.join(valid)}")
    return chosen


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not slash or not part.isdecimal() or not parts.isdecimal() or not 1 <= int(part) <= int(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard: write I/N with 1 <= I <= N, such as 1/8")
    return int(part), int(parts)
