"""Gradients of the losses that compare each score with those of the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .dtypes import compute_dtype

aten = torch.ops.aten

_MEAN = 1


def _scaled(made: Any, gradient: Any, x: Any, reduction: int) -> Any:
    """``made`` [N, C] over the number of classes (and rows), times the loss's gradient, in x's form."""
    count = made.shape[1] * (made.shape[0] if reduction == _MEAN else 1)
    wide = gradient.to(made.dtype)
    made = made / count * (wide if gradient.dim() == 0 else wide.reshape(-1, 1))
    return made.reshape(x.shape).to(x.dtype)


def _multi_margin(
    gradient: Any, x: Any, target: Any, p: Any, margin: Any, weight: Any = None, reduction: int = _MEAN
) -> Any:
    rows = x.reshape(-1, x.shape[-1]).to(compute_dtype(x.dtype))
    target = target.reshape(-1, 1)
    distance = margin - rows.gather(1, target) + rows
    is_target = torch.arange(rows.shape[1], device=x.device) == target
    slope = torch.where((distance > 0) & ~is_target, 1 if p == 1 else 2 * distance, 0).to(rows.dtype)
    if weight is not None:
        slope = slope * weight[target]
    return _scaled(torch.where(is_target, -slope.sum(1, keepdim=True), slope), gradient, x, reduction)


def _multilabel_margin(gradient: Any, x: Any, target: Any, reduction: int, is_target: Any) -> Any:
    """``is_target``: which classes are targets. Those of a row come first in ``target``, up to -1."""
    rows = x.reshape(-1, x.shape[-1]).to(compute_dtype(x.dtype))
    targets = target.reshape(rows.shape)
    given = (targets < 0).to(torch.int64).cumsum(1) == 0
    place = torch.where(given, targets, 0)
    others = is_target.reshape(rows.shape) == 0
    # [N, target, class]
    apart = 1 - rows.gather(1, place)[:, :, None] + rows[:, None, :] > 0
    counted = (apart & given[:, :, None] & others[:, None, :]).to(rows.dtype)
    made = counted.sum(1).scatter_add(1, place, -counted.sum(2))
    return _scaled(made, gradient, x, reduction)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.multi_margin_loss_backward.default: _multi_margin,
    aten.multilabel_margin_loss_backward.default: _multilabel_margin,
}
