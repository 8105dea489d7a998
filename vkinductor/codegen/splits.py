"""Into how many parts reductions are cut: Inductor makes two kernels of those with few results, to fill the device.

A row that one workgroup keeps in registers is done sooner than a second kernel begins, which has to wait for the first,
unless it is the only one and long: the device would wait for one workgroup.
A sum over columns has as many parts as fill a GPU: a workgroup takes a hundred columns, and Inductor counts results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch import fx
from torch._inductor import config
from torch._inductor.dependencies import MemoryDep, extract_read_writes
from torch._inductor.ir import FlexibleLayout, Reduction, ReductionHint
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from . import heuristics, row_sums

# Reductions whose parts are reduced in the same way.
_PLAIN = frozenset(("sum", "prod", "any", "max", "min"))


@dataclass(frozen=True)
class Problem:
    """``results`` results of ``length`` elements in ``dtype`` each: "rows", or "columns" of a matrix. ``parts``: into
    how many the rules of thumb cut each. ``reads``: of elements that are summed together."""

    kind: str
    dtype: torch.dtype
    results: int
    length: int
    parts: int
    reads: int = 1


# What measurement chose for a problem, which the argument makes, on the open device, or None where it has not: filled
# in by the tuner.
tuned: Callable[[Callable[[], Problem]], int | None] | None = None


def register() -> None:
    """Answer for this device where Inductor asks into how many parts to cut a reduction. Idempotent."""
    original: Any = Reduction.num_splits
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def num_splits(
        device: Any,
        dst_dtype: Any,
        src_dtype: Any,
        inner_fn: Any,
        ranges: Any,
        reduction_ranges: Any,
        reduction_type: Any,
        reduction_numel: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        hint, split = original(
            device, dst_dtype, src_dtype, inner_fn, ranges, reduction_ranges, reduction_type, reduction_numel,
            *args, **kwargs,
        )  # fmt: skip
        if device.type != "vulkan" or reduction_type == "scan" or not heuristics.device_reads_dominate():
            return hint, split
        columns = sympy_product(ranges)
        if reduction_type == "sum" and columns == 1 and _static(reduction_numel):
            together = row_sums.rows_together(int(reduction_numel)) if config.split_reductions else 1
            if together > 1:
                return hint, int(reduction_numel) // together
        if split > 1 and hint == ReductionHint.INNER and _static(reduction_numel):
            parts = heuristics.row_parts(int(reduction_numel), columns == 1, split)
            if reduction_type in _PLAIN and _static(columns):
                parts = _measured("rows", parts, inner_fn, ranges, reduction_ranges)
            return hint, parts
        if reduction_type == "sum" and hint != ReductionHint.INNER and _static(reduction_numel, columns):
            parts = heuristics.column_parts(int(reduction_numel), int(columns)) if config.split_reductions else 1
            if parts > 1 and _over_columns(inner_fn, ranges, reduction_ranges):
                # Those that a kernel of rows may take along have to be alike (mixed_reductions.py).
                if not heuristics.sums_with_rows(int(reduction_numel), int(columns)):
                    parts = _measured("columns", parts, inner_fn, ranges, reduction_ranges)
                return ReductionHint.OUTER, parts
        return hint, split

    num_splits.vkinductor = True  # type: ignore[attr-defined]
    Reduction.num_splits = staticmethod(num_splits)  # type: ignore[method-assign]
    row_sums.register()


def _measured(kind: str, parts: int, inner_fn: Any, ranges: Sequence[Any], reduction_ranges: Sequence[Any]) -> int:
    """The number of parts that is forced, or measured, or else ``parts``."""
    forced = heuristics.forced("parts")
    if forced or tuned is None or _is_gathered(inner_fn, ranges, reduction_ranges):
        return int(forced or parts)
    if sympy_product(ranges) == 1 and _has_company(int(sympy_product(reduction_ranges))):
        return parts

    def problem() -> Problem:
        reads = _reads(inner_fn, ranges, reduction_ranges)
        dtypes = [V.graph.get_dtype(read.name) for read in reads]
        dtype = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
        sizes = int(sympy_product(ranges)), int(sympy_product(reduction_ranges))
        return Problem(kind, dtype, *sizes, parts, max(1, len(reads)))

    return tuned(problem) or parts


def candidates(problem: Problem) -> list[int]:
    """Numbers of parts worth trying, that of the rules of thumb first: those near it, and one."""
    near = [problem.parts * 2**shift // 8 for shift in range(7)]
    if problem.kind == "columns":
        near = [n for n in near if n and problem.length % n == 0]
    fewest = 1 if problem.kind == "rows" else heuristics.FEWEST_ROWS_A_PART // 4
    # One workgroup for a row of millions is hopeless.
    whole = [1] if problem.length <= 1 << 20 or problem.kind == "columns" else []
    fitting = [n for n in (*near, *whole) if n >= 1 and problem.length // n >= fewest]
    return list(dict.fromkeys((problem.parts, *fitting)))


def _static(*sizes: Any) -> bool:
    return all(isinstance(size, (int, sympy.Integer)) for size in sizes)


def _over_columns(inner_fn: Any, ranges: Sequence[Any], reduction_ranges: Sequence[Any]) -> bool:
    """Whether neighbouring results are of neighbours in memory, in all that is read for each element."""
    whole = _reads(inner_fn, ranges, reduction_ranges)
    results = sum(size != 1 for size in ranges)
    return bool(whole) and all(_across(read, results) for read in whole)


def _reads(inner_fn: Any, ranges: Sequence[Any], reduction_ranges: Sequence[Any]) -> list[MemoryDep]:
    """What is read for each element."""
    return [
        read
        for read in _all_reads(inner_fn, ranges, reduction_ranges)
        if isinstance(read, MemoryDep) and read.index.free_symbols.issuperset(read.var_names)
    ]


def _is_gathered(inner_fn: Any, ranges: Sequence[Any], reduction_ranges: Sequence[Any]) -> bool:
    """Whether something is read at a place that was read itself: a plain sum, of which one workgroup may read 32768
    elements in 3 us on an H200, says nothing of a sum that waits for memory twice (of so many losses: 28 us)."""
    reads = _all_reads(inner_fn, ranges, reduction_ranges)
    return any(not isinstance(read, MemoryDep) or read.is_indirect() for read in reads)


def _has_company(length: int) -> bool:
    """Whether the graph has another sum with one result of so many elements. In as many parts each they are one kernel:
    the count of targets in one part, as it is best alone, makes a loss of 32768 rows of 1024 halves take 26 us on an
    H200 instead of 24."""
    module, elements = getattr(V.graph, "module", None), row_sums.elements
    nodes = getattr(module, "graph", fx.Graph()).nodes
    sums = [n for n in nodes if getattr(n.target, "overloadpacket", None) in row_sums.SUMS]
    return sum(elements(node) == 1 and elements(node.args[0]) == length for node in sums) > 1


def _all_reads(inner_fn: Any, ranges: Sequence[Any], reduction_ranges: Sequence[Any]) -> Any:
    with patch.object(FlexibleLayout, "allow_indexing", True):
        return extract_read_writes(inner_fn, ranges, reduction_ranges).reads


def _across(read: MemoryDep, results: int) -> bool:
    index, names = sympy.expand(read.index), read.var_names
    return any(index.coeff(name) == 1 for name in names[:results]) and all(
        index.coeff(name) > 1 for name in names[results:]
    )
