"""Operators on each element, or on none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _angle(x: Any) -> Any:
    """Of real numbers: pi for negative ones, 0 for others, NaN for NaN."""
    if x.is_complex():
        return NotImplemented
    turned = torch.where(x < 0, math.pi, 0.0)
    if not x.is_floating_point():
        return turned
    return torch.where(torch.isnan(x), x, turned.to(x.dtype))


def _view_copy(x: Any, size: Any) -> Any:
    """A view where there is one, else what reshape gives: a copy either way."""
    return x.clone(memory_format=torch.contiguous_format).view(size)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.angle.default: _angle,
    aten.view_copy.default: _view_copy,
}
