"""Distances between rows, and their gradients: written with broadcasting, which fuses into one reduction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _norm(difference: Any, p: float) -> Any:
    """The p-norm over the last dimension."""
    size = difference.abs()
    if difference.shape[-1] == 0:
        return size.sum(-1)
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    return size.amax(-1) if math.isinf(p) else size.pow(p).sum(-1).pow(1 / p)


def _slope(difference: Any, distance: Any, p: float) -> Any:
    """The derivative of the p-norm by each component, zero where there is none. ``distance`` ends in a dimension 1."""
    sign = difference.sign()
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return sign
    if math.isinf(p):
        return sign * (difference.abs() == distance).to(difference.dtype)
    safe = torch.where(distance == 0, 1, distance)
    if p == 2:
        slope = difference / safe
    else:
        size = torch.where(difference == 0, 1, difference.abs())
        slope = torch.where(difference == 0, 0, sign * size.pow(p - 1)) / safe.pow(p - 1)
    return torch.where(distance == 0, 0, slope)


def _cdist(x: Any, y: Any, p: float, compute_mode: Any = None) -> Any:
    """[..., P, M], [..., R, M] -> [..., P, R]"""
    return _norm(x.unsqueeze(-2) - y.unsqueeze(-3), p)


def _cdist_backward(grad: Any, x: Any, y: Any, p: float, distance: Any) -> Any:
    """The gradient of x."""
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    slope = _slope(difference, distance.unsqueeze(-1), p)
    return (grad.unsqueeze(-1) * slope).sum(-2)


def _pairs(rows: Any, device: Any) -> tuple[Any, Any, Any]:
    """(row, column, position in the condensed form) over all pairs of rows, [rows, rows] each."""
    i = torch.arange(rows, device=device)
    low, high = torch.minimum(i[:, None], i[None, :]), torch.maximum(i[:, None], i[None, :])
    return low, high, low * rows - low * (low + 1) // 2 + high - low - 1


def _pdist(x: Any, p: float = 2) -> Any:
    """[N, M] -> [N (N - 1) / 2]: the distances of rows i < j."""
    rows = x.shape[0]
    if rows <= 1:
        return x.new_empty(0)
    low, high, place = _pairs(rows, x.device)
    count = rows * (rows - 1) // 2
    place = torch.where(low < high, place, count)
    number = torch.arange(rows * rows, device=x.device).reshape(rows, rows)
    pair = torch.zeros(count + 1, dtype=torch.int64, device=x.device)
    pair = pair.scatter(0, place.reshape(-1), number.reshape(-1))[:count]
    i, j = pair // rows, pair % rows
    return _norm(x[torch.minimum(i, j)] - x[torch.maximum(i, j)], p)


def _pdist_backward(grad: Any, x: Any, p: float, distance: Any) -> Any:
    """Each row sums over the others: no two write to one place."""
    rows = x.shape[0]
    if rows <= 1 or x.shape[1] == 0:
        return torch.zeros_like(x)
    low, high, place = _pairs(rows, x.device)
    apart = low < high
    place = torch.where(apart, place, 0)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    between = torch.where(apart, distance[place], zero).unsqueeze(-1)
    weight = torch.where(apart, grad[place], zero).unsqueeze(-1)
    return (weight * _slope(x[:, None, :] - x[None, :, :], between, p)).sum(1)


TABLE: dict[Any, Callable[..., Any]] = {
    aten._cdist_forward.default: _cdist,
    aten._cdist_backward.default: _cdist_backward,
    aten._pdist_forward.default: _pdist,
    aten._pdist_backward.default: _pdist_backward,
}
