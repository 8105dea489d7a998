"""Attention as a family: codegen/attention's tiles, a problem as vkinductor.attention, its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import heuristics
from ..alignment import WIDEST
from ..attention import decode, subgroups, tiles
from ..attention.problem import Problem
from ..compat import size_hint
from . import compare
from .family import Bucket, Operand, Operation, Size

# Rows of the result that are compared with double precision, of a head.
_ROWS = 16
# (relative, share of the root mean square): probabilities are rounded to the operands' dtype between the products.
_TOLERANCE = {
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float32: (1e-5, 1e-4),
}
# Templates that a tile of their own is forced for; the other one's is forced by its place.
_KINDS = ("decode", "subgroup", "workgroup")
_SIZES = ("batch", "heads", "groups", "queries", "keys")


@dataclass(frozen=True)
class Candidate:
    """A template ("decode", "subgroup", "workgroup" or "fma") and its tile."""

    template: str
    tile: Any

    def settings(self) -> dict[str, Any]:
        """What ``heuristics.override`` takes for it."""
        chosen: dict[str, Any] = dict.fromkeys((f"attention_{kind}" for kind in _KINDS), False)
        if self.template == "fma":
            return {**chosen, "attention_tile": tiles.FMA_TILES.index(self.tile)}
        return {**chosen, f"attention_{self.template}": self.tile}


class Attention:
    """The family of attention's forward; problems are `attention.problem.Problem`."""

    name = "attention"
    sources: tuple[str, ...] = ("codegen/attention", "codegen/alignment.py", "codegen/template_kernel.py", "templates")

    def bucket(self, problem: Problem) -> Bucket:
        dtype = str(problem.dtype).removeprefix("torch.")
        kind = [dtype, f"{problem.width}x{problem.width_v}", *filter(None, (problem.mask, "causal" * problem.causal))]
        return Bucket(" ".join(kind), tuple(_size(name, getattr(problem, name)) for name in _SIZES))

    def candidates(self, info: DeviceInfo, problem: Problem) -> Sequence[Candidate]:
        width, width_v = problem.width, problem.width_v
        found = [self._by_rules(info, problem)]
        total = decode.rows_of(problem)
        if total is not None:
            rows, lanes = min(total, decode.ROWS), _lanes(problem)
            found += [Candidate("decode", t) for t in decode.matrix_tiles(info, problem, total)]
            found += [Candidate("decode", t) for t in decode.TILES if t.fits(info, rows, width, lanes)]
        if problem.dtype in (torch.float16, torch.bfloat16):
            found += [Candidate("subgroup", t) for t in subgroups.fitting(info, problem, "forward")]
            both = [dataclasses.replace(t, hold=hold) for t in tiles.WORKGROUP_TILES for hold in (True, False)]
            found += [Candidate("workgroup", t) for t in both if t.fits(info, problem.dtype, width, width_v)]
        found += [Candidate("fma", t) for t in tiles.FMA_TILES if t.fits(info, width_v)]
        return found

    def _by_rules(self, info: DeviceInfo, problem: Problem) -> Candidate:
        few = decode.tile_with(info, problem, _lanes(problem))
        if few is not None:
            return Candidate("decode", few)
        small = subgroups.tile_of(info, problem, ())
        if small is not None:
            return Candidate("subgroup", small)
        whole = tiles.workgroup_tile(info, problem, ())
        return Candidate("fma", tiles.fma_tile(info, problem)) if whole is None else Candidate("workgroup", whole)

    def label(self, candidate: Candidate) -> str:
        values = dataclasses.asdict(candidate.tile)
        return " ".join([candidate.template, *(f"{name}={value}" for name, value in values.items())])

    def estimate(self, info: DeviceInfo, problem: Problem, candidate: Candidate) -> float:
        """All alike: there are few, in an order that is good."""
        return 0.0

    def forced(self, candidate: Candidate) -> AbstractContextManager[Any]:
        return heuristics.override(**candidate.settings())

    def operation(self, problem: Problem) -> Operation:
        batch, heads, groups, queries, keys = (_size(name, getattr(problem, name)).value for name in _SIZES)
        width, width_v, causal = problem.width, problem.width_v, problem.causal
        shapes = [(batch, heads, queries, width), (batch, groups, keys, width), (batch, groups, keys, width_v)]
        operands = [_contiguous(shape, problem.dtype) for shape in shapes]
        if problem.mask:
            dtype = torch.bool if problem.mask == "bool" else problem.dtype
            operands.append(_contiguous((1, 1, queries, keys), dtype))
        scale = width**-0.5
        tolerance = _TOLERANCE[problem.dtype]

        def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
            return torch.ops.vkinductor.attention.default(q, k, v, mask, causal, scale)[0]

        def check(values: Sequence[torch.Tensor], got: torch.Tensor) -> str | None:
            return _check(values, got, causal, scale, tolerance)

        itemsize = problem.dtype.itemsize
        moved = sum(o.dtype.itemsize * _numel(o.size) for o in operands) + batch * heads * queries * width_v * itemsize
        flops = 2 * batch * heads * queries * keys * (width + width_v)
        return Operation(attention, tuple(operands), moved, flops // 2 if causal else flops, check, tolerance)


def _lanes(problem: Problem) -> int:
    """Invocations that read a row of aligned values."""
    width = WIDEST // problem.dtype.itemsize
    while problem.width_v % width:
        width //= 2
    return problem.width_v // width


def _size(name: str, value: Any) -> Size:
    return Size(name, size_hint(value), isinstance(value, (int, sympy.Integer)))


def _numel(size: tuple[int, ...]) -> int:
    total = 1
    for n in size:
        total *= n
    return total


def _contiguous(size: tuple[int, ...], dtype: torch.dtype) -> Operand:
    return Operand(size, torch.empty(size, device="meta").stride(), dtype)


def problem_of(
    batch: int, heads: int, groups: int, queries: int, keys: int, width: int, dtype: torch.dtype, causal: bool
) -> Problem:
    """The problem of contiguous operands without a mask."""
    return Problem(batch, heads, groups, queries, keys, width, width, dtype, "", causal, width**-0.5)


def _check(
    values: Sequence[torch.Tensor], got: torch.Tensor, causal: bool, scale: float, tolerance: tuple[float, float]
) -> str | None:
    q, k, v = values[:3]
    batch, heads, queries, _ = q.shape
    share = heads // k.shape[1]
    rows = sorted({*torch.linspace(0, queries - 1, min(queries, _ROWS)).long().tolist()})
    for b, h in sorted({(0, 0), (batch - 1, heads - 1)}):
        keys, columns = k[b, h // share].double(), v[b, h // share].double()
        scores = q[b, h, rows].double() @ keys.t() * scale
        if len(values) > 3:
            mask = values[3][0, 0, rows]
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.double()
        if causal:
            scores = scores.masked_fill(torch.arange(len(keys)) > torch.tensor(rows)[:, None], -torch.inf)
        want = (scores.softmax(-1).nan_to_num() @ columns).to(q.dtype)
        wrong = compare.difference(got[b, h, rows], want, tolerance)
        if wrong is not None:
            return f"in rows {rows} of head {h}: {wrong}"
    return None


ATTENTION = Attention()
