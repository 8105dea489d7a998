"""What a benchmark is made of: cases with their inputs and least costs, the rows they give, tables, JSON, plots."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .devices import OURS
from .measure import save

# Inputs of all rotated calls together are at least this: beyond any cache that is made today.
ROTATED_BYTES = 256 << 20
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def own(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``function`` with code of its own: Dynamo keeps what it compiled by the code, and would take one shape after the
    other for sizes that vary."""
    if not isinstance(function, types.FunctionType):
        plain = function
        function = lambda *args: plain(*args)  # noqa: E731
    old = function
    code = old.__code__.replace(co_name=f"{old.__code__.co_name} {name}")
    copy = types.FunctionType(code, old.__globals__, old.__name__, old.__defaults__, old.__closure__)
    copy.__kwdefaults__ = old.__kwdefaults__
    return copy


@dataclass(frozen=True)
class Case:
    """One problem.

    function(*inputs): what is timed, of tensors that ``inputs(device)`` makes (random, new for each call of it).
    nbytes: the least it reads and writes; flops: multiplications and additions (0: its speed is that of memory).
    inner: how often ``function`` does the problem, on other data each time. backward: the gradients of the inputs that
    require them are timed, not the function. targets: by system (or "ceiling"), the least ratio of its time to ours.
    """

    group: str
    name: str
    function: Callable[..., Any]
    inputs: Callable[[str], Sequence[Any]]
    nbytes: float
    flops: float = 0
    inner: int = 1
    backward: bool = False
    targets: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name among all."""
        return f"{self.group}: {self.name}"

    def calls(self, compile_: Callable[[Any], Any], device: str, most: int = 8) -> list[Callable[[], Any]]:
        """Calls of it on other data each, ``most`` at most, for a system that compiles with ``compile_``."""
        run = compile_(own(self.function, self.key))
        first = self.inputs(device)
        size = max(1, sum(t.nbytes for t in self._flat(first)))
        more = min(most, math.ceil(ROTATED_BYTES / size)) - 1
        return [self._call(run, first), *(self._call(run, self.inputs(device)) for _ in range(more))]

    @staticmethod
    def _flat(inputs: Sequence[Any]) -> list[torch.Tensor]:
        return [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]

    def _call(self, run: Callable[..., Any], inputs: Sequence[Any]) -> Callable[[], Any]:
        if not self.backward:

            @torch.no_grad()
            def forward() -> Any:
                return run(*inputs)

            return forward
        wanted = [t for t in self._flat(inputs) if t.requires_grad]
        result = run(*inputs)
        upstream = torch.randn_like(result)
        return lambda: torch.autograd.grad(result, wanted, upstream, retain_graph=True)


@dataclass
class Result:
    """A case on a system: microseconds of one problem on the device, None where ``note`` says why."""

    case: str
    system: str
    us: float | None
    nbytes: float
    flops: float
    targets: dict[str, float]
    note: str = ""

    @property
    def rate(self) -> float:
        """TFLOP/s, or GB/s where there are no FLOPs to speak of."""
        if self.us is None:
            return 0.0
        return self.flops / self.us / 1e6 if self.flops else self.nbytes / self.us / 1e3

    @property
    def gigabytes(self) -> float:
        """GB/s by the least bytes."""
        return 0.0 if self.us is None else self.nbytes / self.us / 1e3


def write(path: Path, results: Iterable[Result], about: dict[str, Any]) -> None:
    """JSON of results and what they were measured on."""
    save(str(path), list(results), about=about)


def read(path: Path) -> tuple[list[Result], dict[str, Any]]:
    """What `write` wrote."""
    report = json.loads(path.read_text())
    return [Result(**row) for row in report["rows"]], report["about"]


def ratios(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """By case: a system's name to its time over ours, and "ceiling" to our share of the copy bandwidth."""
    ours = {r.case: r for r in results if r.system == OURS and r.us}
    copies = [r.gigabytes for r in results if r.case.startswith("ceiling: copy")]
    found: dict[str, dict[str, float]] = {}
    for r in results:
        own = ours.get(r.case)
        if own is None or own.us is None or r.us is None:
            continue
        found.setdefault(r.case, {})
        if r.system != OURS:
            found[r.case][r.system] = r.us / own.us
        elif copies:
            found[r.case]["ceiling"] = r.gigabytes / max(copies)
    return found


def table(results: Sequence[Result]) -> str:
    """Markdown: a line for each case, with every system's time, the ratios of the peers to ours, and the targets."""
    systems = [OURS, *dict.fromkeys(r.system for r in results if r.system != OURS)]
    by_case: dict[str, dict[str, Result]] = {}
    for r in results:
        by_case.setdefault(r.case, {})[r.system] = r
    compared = ratios(results)
    heads = ["case", *(f"{s} us" for s in systems), "our rate", "of copy", *(f"{s} / ours" for s in systems[1:])]
    lines = [
        f"| {' | '.join(heads)} | target |",
        "|---|" + "---:|" * (2 * len(systems) + 1) + "---|",
    ]
    for case, row in by_case.items():
        own = row.get(OURS)
        share = compared.get(case, {})
        times = [
            f"{row[s].us:.1f}" if s in row and row[s].us is not None else (row[s].note[:60] if s in row else "")
            for s in systems
        ]
        unit = "TFLOP/s" if own and own.flops else "GB/s"
        rate = f"{own.rate:.0f} {unit}" if own and own.us else ""
        targets = own.targets if own else {}
        verdicts = [
            f"{k} {v:g}: {'met' if share.get(k, 0) >= v else 'missed'}" for k, v in targets.items() if k in share
        ]
        columns = [
            case,
            *times,
            rate,
            f"{share['ceiling']:.2f}" if "ceiling" in share else "",
            *(f"{share[s]:.2f}" if s in share else "" for s in systems[1:]),
            ", ".join(verdicts),
        ]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def plot(path: Path, results: Sequence[Result], title: str) -> None:
    """An SVG of bars: each peer's time over ours, by case; the line is where both are as fast.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (extra "bench").
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    compared = {case: values for case, values in ratios(results).items() if any(k != "ceiling" for k in values)}
    peers = list(dict.fromkeys(k for values in compared.values() for k in values if k != "ceiling"))
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.28 * max(1, len(compared)) * max(1, len(peers))))
    height = 0.8 / max(1, len(peers))
    for i, peer in enumerate(peers):
        values = [v.get(peer, 0.0) for v in compared.values()]
        axes.barh([j + i * height for j in range(len(values))], values, height, label=f"{peer} / ours")
    axes.set_yticks([j + 0.4 - height / 2 for j in range(len(compared))], list(compared), fontsize=7)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("time of the peer over ours (more than 1: ours is faster)")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
