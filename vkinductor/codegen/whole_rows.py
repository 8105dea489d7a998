"""Which reductions stay whole: Inductor cuts those with few results into two kernels, to fill the device.

A row that one workgroup keeps in registers is done sooner than a second kernel begins, which has to wait for the first.
"""

from __future__ import annotations

import functools
from typing import Any

import sympy
from torch._inductor.ir import Reduction, ReductionHint

from .heuristics import device_reads_dominate, longest_row_in_registers


def register() -> None:
    """Answer for this device where Inductor asks into how many parts to cut a reduction. Idempotent."""
    original: Any = Reduction.num_splits
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def num_splits(device: Any, *args: Any, **kwargs: Any) -> Any:
        hint, split = original(device, *args, **kwargs)
        kind, row = kwargs.get("reduction_type"), kwargs.get("reduction_numel")
        kind, row = args[5:7] if len(args) > 6 else (kind, row)
        whole = device.type == "vulkan" and kind != "scan" and split > 1 and _stays_whole(hint, row)
        return hint, 1 if whole else split

    num_splits.vkinductor = True  # type: ignore[attr-defined]
    Reduction.num_splits = staticmethod(num_splits)  # type: ignore[method-assign]


def _stays_whole(hint: Any, row: Any) -> bool:
    along = hint == ReductionHint.INNER and isinstance(row, (int, sympy.Integer))
    return along and device_reads_dominate() and row <= longest_row_in_registers()
