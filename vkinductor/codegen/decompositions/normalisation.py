"""Batch normalisation, training and not, with its gradient.

As torch's CPU kernels have it: the saved statistics are empty outside of training, and have the dtype of the
parameters. Sizes enter as integers alone: AOTAutograd looks for floating-point numbers made of sizes among a graph's
inputs, where a graph of one operator has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

from vkinductor.device import operators

from .dtypes import compute_dtype

aten = torch.ops.aten


def _columns(x: Any) -> tuple[list[int], Any, list[int]]:
    """The dimensions that are reduced, how many elements they hold, and the shape of a statistic against x."""
    dims = [0, *range(2, x.dim())]
    count = 1
    for d in dims:
        count = count * x.shape[d]
    return dims, count, [1, -1, *[1] * (x.dim() - 2)]


def _forward(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """(result, saved mean, saved 1 / deviation, running mean, running variance)."""
    compute = compute_dtype(x.dtype)
    dims, count, shape = _columns(x)
    wide = x.to(compute)
    parameters = [p for p in (weight, bias, mean, var) if p is not None]
    kept = parameters[0].dtype if parameters else x.dtype
    new_mean, new_var = mean, var
    if training:
        now_var, now_mean = torch.var_mean(wide, dims, correction=0)
        scale = torch.rsqrt(now_var + eps)
        saved = now_mean.to(kept), scale.to(kept)
        if mean is not None:
            new_mean = (momentum * now_mean + (1 - momentum) * mean).to(mean.dtype)
        if var is not None:
            new_var = (momentum * (now_var * count / (count - 1)) + (1 - momentum) * var).to(var.dtype)
    else:
        saved = x.new_empty([0], dtype=kept), x.new_empty([0], dtype=kept)
        scale, shift = operators.scale_and_shift(weight, bias, mean, var, eps)
        result = wide * scale.to(compute).view(shape) + shift.to(compute).view(shape)
        return (result.to(x.dtype), *saved, mean, var)
    result = (wide - now_mean.view(shape)) * scale.view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return (result.to(x.dtype), *saved, new_mean, new_var)


def _evaluated(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    return _forward(x, weight, bias, mean, var, False, momentum, eps)[:3]


def _without_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    return _forward(x, weight, bias, None, None, training, momentum, eps)[:3]


def _with_update(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    made = _forward(x, weight, bias, mean, var, True, momentum, eps)
    return (*made[:3], x.new_empty([0], dtype=torch.uint8), *made[3:])


def _no_update(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    return (*_forward(x, weight, bias, mean, var, False, momentum, eps)[:3], x.new_empty([0], dtype=torch.uint8))


def _backward(
    gradient: Any, x: Any, weight: Any, mean: Any, var: Any, saved_mean: Any, saved_scale: Any, training: bool,
    eps: float, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    compute = compute_dtype(x.dtype)
    dims, count, shape = _columns(x)
    if training:
        center, scale = saved_mean.to(compute), saved_scale.to(compute)
    else:
        center, scale = mean.to(compute), torch.rsqrt(var.to(compute) + eps)
    wide = gradient.to(compute)
    normal = (x.to(compute) - center.view(shape)) * scale.view(shape)
    total, along = wide.sum(dims), (wide * normal).sum(dims)
    factor = scale if weight is None else scale * weight
    if training:
        wide = wide - (total / count).view(shape) - normal * (along / count).view(shape)
    kept = x.dtype if weight is None else weight.dtype
    return (
        (wide * factor.view(shape)).to(x.dtype) if mask[0] else None,
        along.to(kept) if mask[1] else None,
        total.to(kept) if mask[2] else None,
    )


def _backward_with_reserve(*args: Any) -> tuple[Any, ...]:
    return _backward(*args[:-1])


def _evaluation(training: Callable[..., Any]) -> Callable[..., Any]:
    """Ours outside of training; ``training`` writes the running statistics."""

    def norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, train: bool, *rest: float) -> Any:
        if train:
            return training(x, weight, bias, mean, var, train, *rest)
        return _forward(x, weight, bias, mean, var, train, *rest)[:3]

    return norm


TABLE: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_functional.default: _forward,
    aten._native_batch_norm_legit.default: _evaluation(decomposition_table[aten._native_batch_norm_legit.default]),
    aten.native_batch_norm.default: _evaluation(decomposition_table[aten.native_batch_norm.default]),
    aten._native_batch_norm_legit_no_training.default: _evaluated,
    aten._native_batch_norm_legit.no_stats: _without_statistics,
    aten._batch_norm_with_update_functional.default: _with_update,
    aten._batch_norm_no_update.default: _no_update,
    aten.native_batch_norm_backward.default: _backward,
    aten.batch_norm_backward.default: _backward_with_reserve,
}
