"""Counting values by bins: additions into the bins, all in one kernel.

Counts are whole numbers, so their sum does not depend on the order in which the additions happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Counts of the elements of x in ``bins`` equal parts of [min, max], the last one closed; others count nowhere.

    min == max: the range of x itself, which torch requires to be finite and this does not check.
    """
    torch._check(bins > 0, lambda: f"torch.histc(): bins must be > 0, but got {bins}")
    torch._check(min <= max, lambda: "torch.histc(): max must be larger than min")
    flat = x.reshape(-1)
    exact = torch.int64 if not x.is_floating_point() else torch.promote_types(x.dtype, torch.float32)
    flat = flat.to(exact)
    low, high = flat.new_full((), min), flat.new_full((), max)
    if min == max and x.numel():
        low, high = aten.amin(flat), aten.amax(flat)
    if min == max:
        low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    inside = (flat >= low) & (flat <= high)
    scaled = (flat - low) * bins
    place = scaled / (high - low) if x.is_floating_point() else scaled // (high - low)
    # What lies outside, and NaN, goes into a bin of its own.
    place = torch.where(inside, torch.where(inside, place, 0).to(torch.int64).clamp(0, bins - 1), bins)
    counts = torch.zeros(bins + 1, dtype=exact, device=x.device)
    return aten.scatter_add(counts, 0, place, torch.ones_like(flat))[:bins].to(x.dtype, copy=True)


TABLE: dict[Any, Callable[..., Any]] = {aten.histc.default: _histc}
