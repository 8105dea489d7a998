"""torch.histc: counts are scattered, one slot takes what lies outside. The other histograms lack the
meta functions that graphs need: they are kernels of the device (device/histograms.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _range(x: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """The ends as tensors: those of the data where none are given, half or one apart where they coincide."""
    if low == high and low == 0 and x.shape.numel():
        low, high = x.min(), x.max()
    else:
        low, high = (torch.full((), v, dtype=x.dtype, device=x.device) for v in (low, high))
    same = low == high
    return torch.where(same, low - 1, low), torch.where(same, high + 1, high)


def _count(place: Any, inside: Any, bins: int, weight: Any) -> Any:
    slots = torch.zeros(bins + 1, dtype=weight.dtype, device=place.device)
    place = torch.where(inside, place, bins)
    return slots.scatter_add(0, place.reshape(-1), weight.expand(place.shape).reshape(-1))[:bins]


def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    low, high = _range(x, min, max)
    inside = (x >= low) & (x <= high)
    place = ((x - low) * bins / (high - low)).to(torch.int64).clamp(0, bins - 1)
    return _count(place, inside, bins, torch.ones((), dtype=x.dtype, device=x.device))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.histc.default: _histc,
}
