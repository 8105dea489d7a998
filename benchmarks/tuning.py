"""Whether tuning pays: kernels that max-autotune chose beside those of the default, and what choosing took.

    python -m benchmarks.tuning [--seconds S] [--only REGEX] [--json DIR] [--quick]

Everything happens in caches of its own, which are empty at first. The default of every problem is compiled before
anything has been measured, and is not compiled again: each program's text is noted when it is written, and one that is
written later is an error. Then each problem is compiled with max-autotune, and both programs are timed in turns, with
calls that do not wait for each other (as `python -m benchmarks` times them) and with calls that do. Where both
programs are one text, the ratio is 1 and the default alone is timed. At the end a second process compiles everything
with max-autotune again, and has nothing to time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from .__main__ import once, selected
from .cases import Case
from .devices import Calls, Vulkan
from .measure import WARM_UP_S, save

# Cases of the other benchmarks: what they tell apart is in which kernels tuning has a choice.
PROBLEMS = (
    "gemm: linear 256x4096x4096 float16",
    "gemm: linear 128x4096x16384 float16",
    "gemm: linear 16x4096x4096 float16",
    "gemm: product 64x512x512x512 float16",
    "gemm: product 2048x2048x2048 float16",
    "gemm: linear 4096x4096x4096 float16",
    "gemv: 1 x 2048x2048 float16",
    "layers: norm, q, k, v 2048+256+256x2048 float16",
    "layers: norm, gate 2x5632x2048 float16",
    "layers: norm, gate 2x5632x2048 Q4_K",
    "layers: norm, q, k, v 4096+1024+1024x4096 Q8_0",
    "conv: conv 64->64 56x56 kernel 3 stride 1",
    "conv: depthwise 32->32 112x112 kernel 3 stride 1",
    "conv: depthwise 384->384 14x14 kernel 7 stride 1",
    "attention: causal head 64 T=2048 float16",
    "attention: causal head 128 T=2048 float16",
    "attention: decode 8 x 32/4 heads of 64, T=8192 float16",
    "attention: decode 8 x 32/8 heads of 128, T=8192 float16",
    "norms: rms_norm + residual 8192x4096 float16",
    "norms: layer_norm 32768x1024 bfloat16",
    "norms: softmax 8192x4096 float16",
    "norms: log_softmax + nll 32768x1024 float32",
    "norms: layer_norm backward 8192x4096 float16",
    "norms: rms_norm backward 32768x1024 bfloat16",
    "pointwise: 4 streams float16",
    "pointwise: permuted copy float32",
)
QUICK = (
    "gemm: product 4x128x128x128 float16",
    "layers: norm, gate 2x1536x576 Q8_0",
    "norms: softmax 8x32768 float32",
    "norms: layer_norm backward 512x4096 float16",
)
MODULES = ("gemm", "gemv", "layers", "conv", "attention", "norms", "pointwise")
# How much slower than the default nothing may be.
SLOWER = 1.02

_UNTUNED: dict[str, Any] = {"recording": False}
_SAMPLES, _SAMPLE_S, _MOST_CALLS = 9, 0.02, 48


@dataclass
class Row:
    """A problem. Times are microseconds of one call on the device: ``default`` and ``tuned`` of calls that do not wait
    for each other, ``..._waiting`` of calls that do; None where ``note`` says why, of ``tuned`` where it is ``same``,
    the same programs as the default's. ``seconds``: compiling with max-autotune, of which ``candidates`` there are, of
    which ``measured`` were timed. ``chosen``: kernels that are not the rules of thumb's."""

    case: str
    default: float | None = None
    tuned: float | None = None
    default_waiting: float | None = None
    tuned_waiting: float | None = None
    same: bool = False
    seconds: float = 0.0
    measured: int = 0
    candidates: int = 0
    chosen: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def ratios(self) -> tuple[float, float] | None:
        """Tuned over default, of calls that do not wait and of calls that do."""
        if self.same:
            return 1.0, 1.0
        if not (self.default and self.tuned and self.default_waiting and self.tuned_waiting):
            return None
        return self.tuned / self.default, self.tuned_waiting / self.default_waiting


def problems(quick: bool, pattern: str) -> list[Case]:
    """The cases, in the order of their names above. Raises KeyError for a name that no benchmark has."""
    by_key = {case.key: case for case in selected(list(MODULES), "", quick)}
    return [by_key[key] for key in (QUICK if quick else PROBLEMS) if re.search(pattern, key)]


@contextlib.contextmanager
def written() -> Iterator[list[str]]:
    """Programs of the user's graphs, which are written inside; not those of eager operators or of the tuner's
    candidates."""
    from torch._inductor.graph import GraphLowering

    from vkinductor.codegen.eager.program import is_compiling

    programs: list[str] = []

    def note(code: str) -> None:
        if not is_compiling():
            programs.append(re.sub(r"(?m)^# AOT ID:.*\n", "", code))

    with mock.patch.object(GraphLowering, "save_output_code", staticmethod(note)):
        yield programs


def compiled(system: Vulkan, case: Case, options: dict[str, Any]) -> Callable[[Any], Any]:
    """How `Case.calls` compiles ``case``, which has been done, so that it is not done again."""
    way = once(lambda function: torch.compile(function, backend="vulkan", options=options))
    case.calls(way, system.device, most=1)[0]()
    system.synchronize()
    return way


def turns(system: Vulkan, ways: Sequence[Calls], waiting: bool) -> list[float]:
    """Median microseconds of a call of each of ``ways``, which are timed in turns, the order reversed each time."""
    from vkinductor.runtime import context

    barrier = context.get().stream.barrier

    def run(calls: Calls, count: int) -> None:
        for i in range(count):
            if waiting:
                barrier()
            calls[i % len(calls)]()

    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < WARM_UP_S or not n:
        for calls in ways:
            run(calls, len(calls))
            system.synchronize()
            n += len(calls)
    each = (time.perf_counter() - start) / n
    counts = [-(-max(1, min(_MOST_CALLS, int(_SAMPLE_S / each))) // len(calls)) * len(calls) for calls in ways]
    spans: list[list[float]] = [[] for _ in ways]
    order = list(range(len(ways)))
    for _ in range(_SAMPLES):
        for i in order:
            calls, count = ways[i], counts[i]
            spans[i].append(system.span(lambda c=calls, n=count: run(c, n), count * each) / count)  # type: ignore[misc]
        order.reverse()
    return [statistics.median(of) for of in spans]


def compare(system: Vulkan, cases: Sequence[Case], seconds: float) -> Iterator[Row]:
    """Every case by default and tuned. What fails is a row with the reason.

    Raises RuntimeError when a measurement may have had a say in a default.
    """
    rows = [Row(case.key) for case in cases]
    defaults: list[tuple[Callable[[Any], Any], list[str]] | None] = []
    with written() as programs:
        for case, row in zip(cases, rows, strict=True):
            before = len(programs)
            way = _tried(row, lambda c=case: compiled(system, c, _UNTUNED))  # type: ignore[misc]
            defaults.append(None if way is None else (way, programs[before:]))
    _check(not measured(), "something has been measured before the defaults were compiled")
    for case, row, default in zip(cases, rows, defaults, strict=True):
        if default is not None:
            _tried(row, lambda c=case, r=row, d=default: _compare(system, c, r, *d, seconds))  # type: ignore[misc]
        yield row


def _compare(
    system: Vulkan, case: Case, row: Row, default: Callable[[Any], Any], texts: list[str], seconds: float
) -> None:
    known = measured()
    start = time.perf_counter()
    with written() as programs:
        tuned = compiled(system, case, {**_UNTUNED, "tune": True, "tuning_seconds": seconds})
    row.seconds = time.perf_counter() - start
    _check(bool(texts) and len(programs) == len(texts), "a program came from a cache: its text is not known")
    row.same = programs == texts
    for result in (result for key, result in measured().items() if key not in known):
        row.candidates += len(result.rows)
        row.measured += sum(one.status == "ok" for one in result.rows)
        if result.choice != result.baseline:
            row.chosen.append(f"{result.family}: {result.choice}")
    with written() as programs:
        ways = [case.calls(way, system.device) for way in ([default] if row.same else [default, tuned])]
        apart, waiting = ([us / case.inner for us in turns(system, ways, wait)] for wait in (False, True))
    _check(not programs, "a program was compiled anew to be timed")
    row.default, row.default_waiting = apart[0], waiting[0]
    if not row.same:
        row.tuned, row.tuned_waiting = apart[1], waiting[1]


def measured() -> dict[str, Any]:
    """Results of the tuner that this process has found or made."""
    from vkinductor.codegen import tuning
    from vkinductor.codegen.tuning.results import results

    _check(bool(results().seen) or not tuning.fingerprint(), "there are results of another process")
    return dict(results().seen)


def again(system: Vulkan, cases: Sequence[Case], seconds: float) -> Iterator[tuple[str, int]]:
    """(case, candidates that were timed) where everything has been tuned before."""
    import vkinductor

    for case in cases:
        before = vkinductor.stats()["timings"]
        with contextlib.suppress(Exception):  # as the first process has said
            compiled(system, case, {**_UNTUNED, "tune": True, "tuning_seconds": seconds})
        yield case.key, vkinductor.stats()["timings"] - before


def _tried(row: Row, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except _Invalid:
        raise
    except Exception as error:
        row.note = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}"
        return None


class _Invalid(RuntimeError):
    """What was measured would not be what is said."""


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Invalid(otherwise)


def _child(arguments: argparse.Namespace) -> int:
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # the backward of one forward is timed again and again
    system = Vulkan()
    cases = problems(arguments.quick, arguments.only)
    print(json.dumps({"about": system.about()}), flush=True)
    torch.manual_seed(0)
    if arguments.child == "again":
        for key, timings in again(system, cases, arguments.seconds):
            print(json.dumps({"again": key, "timings": timings}), flush=True)
        return 0
    for row in compare(system, cases, arguments.seconds):
        print(json.dumps({"row": asdict(row)}), flush=True)
    return 0


def _lines(arguments: argparse.Namespace, child: str, caches: Path) -> Iterator[dict[str, Any]]:
    """What a process with these caches tells. Raises RuntimeError when it ends before it should."""
    line = [sys.executable, "-W", "ignore", "-m", "benchmarks.tuning", "--child", child, "--only", arguments.only]
    line += ["--seconds", str(arguments.seconds), *(["--quick"] if arguments.quick else [])]
    own = {"VKINDUCTOR_CACHE_DIR": str(caches / "vkinductor"), "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor")}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, **own}) as process:
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("{"):
                yield json.loads(text)
    if process.returncode:
        raise RuntimeError(f"the process that was to {child} ended with {process.returncode}")


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each problem, and what is the worst."""
    heads = ("case", "default us", "tuned us", "ratio", "default us, waiting", "tuned us, waiting", "ratio")
    heads += ("tuning s", "timed", "chosen")
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * 8 + "---|"]
    for row in rows:
        ratios = [f"{ratio:.3f}" for ratio in row.ratios] if row.ratios else ["", ""]
        chosen = row.note or ("same" if row.same else "; ".join(row.chosen) or "other text")
        columns = [
            *(row.case, _us(row.default), _us(row.tuned), ratios[0]),
            *(_us(row.default_waiting), _us(row.tuned_waiting), ratios[1]),
            *(f"{row.seconds:.1f}", f"{row.measured}/{row.candidates}", chosen),
        ]
        lines.append(f"| {' | '.join(columns)} |")
    found = [(max(row.ratios), row.case) for row in rows if row.ratios]
    if found:
        worst, case = max(found)
        verdict = "met" if worst <= SLOWER and len(found) == len(rows) else "missed"
        lines += ["", f"Slower than the default by at most {SLOWER - 1:.0%}: {verdict}; worst {worst:.3f}, {case}"]
    return "\n".join(lines)


def _us(time: float | None) -> str:
    return "" if time is None else f"{time:.1f}" if time >= 10 else f"{time:.2f}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, metavar="S", help="of tuning for a kernel (default 8)")
    parser.add_argument("--only", metavar="REGEX", default="", help="problems whose names hold it")
    parser.add_argument("--json", metavar="DIR", type=Path, help="write tuning.json and tuning.md there")
    parser.add_argument("--quick", action="store_true", help="few and small problems")
    parser.add_argument("--child", choices=("measure", "again"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        return _child(arguments)
    if not problems(arguments.quick, arguments.only):
        parser.error(
            f"no problem's name holds {arguments.only!r}; there are {'; '.join(QUICK if arguments.quick else PROBLEMS)}"
        )
    rows: list[Row] = []
    about: dict[str, Any] = {}
    timings: dict[str, int] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as caches:
        for child in ("measure", "again"):
            for line in _lines(arguments, child, Path(caches)):
                about = line.get("about", about)
                if "row" in line:
                    rows.append(Row(**line["row"]))
                    print(f"{time.monotonic() - began:6.0f} s  {table(rows[-1:]).splitlines()[2]}", flush=True)
                if "again" in line:
                    timings[line["again"]] = line["timings"]
                if arguments.json and rows:
                    arguments.json.mkdir(parents=True, exist_ok=True)
                    save(str(arguments.json / "tuning.json"), rows, about=about, again=timings)
    taken = {key: count for key, count in timings.items() if count}
    text = f"{table(rows)}\n\nA second process took {sum(taken.values())} timings {taken or ''}".rstrip()
    print(f"\n{json.dumps(about)}\n\n{text}\n\n{time.monotonic() - began:.0f} s")
    if arguments.json:
        (arguments.json / "tuning.md").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
