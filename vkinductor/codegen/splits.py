"""Into how many parts reductions are cut: Inductor makes two kernels of those with few results, to fill the device.

A row that one workgroup keeps in registers is done sooner than a second kernel begins, which has to wait for the first,
unless it is the only one and long: the device would wait for one workgroup.
A sum over columns has as many parts as fill a GPU: a workgroup takes a hundred columns, and Inductor counts results.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import sympy
from torch._inductor import config
from torch._inductor.dependencies import MemoryDep, extract_read_writes
from torch._inductor.ir import FlexibleLayout, Reduction, ReductionHint
from torch._inductor.utils import sympy_product

from . import heuristics


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
        if split > 1 and hint == ReductionHint.INNER and _static(reduction_numel):
            return hint, heuristics.row_parts(int(reduction_numel), columns == 1, split)
        if reduction_type == "sum" and hint != ReductionHint.INNER and _static(reduction_numel, columns):
            parts = heuristics.column_parts(int(reduction_numel), int(columns)) if config.split_reductions else 1
            if parts > 1 and _over_columns(inner_fn, ranges, reduction_ranges):
                return ReductionHint.OUTER, parts
        return hint, split

    num_splits.vkinductor = True  # type: ignore[attr-defined]
    Reduction.num_splits = staticmethod(num_splits)  # type: ignore[method-assign]


def _static(*sizes: Any) -> bool:
    return all(isinstance(size, (int, sympy.Integer)) for size in sizes)


def _over_columns(inner_fn: Any, ranges: Sequence[Any], reduction_ranges: Sequence[Any]) -> bool:
    """Whether neighbouring results are of neighbours in memory, in all that is read for each element."""
    with patch.object(FlexibleLayout, "allow_indexing", True):
        reads = extract_read_writes(inner_fn, ranges, reduction_ranges).reads
    results = sum(size != 1 for size in ranges)
    whole = [
        read for read in reads if isinstance(read, MemoryDep) and read.index.free_symbols.issuperset(read.var_names)
    ]
    return bool(whole) and all(_across(read, results) for read in whole)


def _across(read: MemoryDep, results: int) -> bool:
    index, names = sympy.expand(read.index), read.var_names
    return any(index.coeff(name) == 1 for name in names[:results]) and all(
        index.coeff(name) > 1 for name in names[results:]
    )
