"""Bags of rows of a table, summed, averaged or their maximum, with gradients; tables whose rows have a largest norm.

A bag is a stretch of ``indices`` [N], and ``offsets`` says where each begins. Rows are read and added to their bag in
one scatter. ``padding_idx`` stands for no row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .dtypes import compute_dtype

aten = torch.ops.aten

_SUM, _MEAN, _MAX = 0, 1, 2


def _kept(indices: Any, padding_idx: int) -> Any:
    """[N]: whether an index stands for a row."""
    return indices != padding_idx


def _bags(
    weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """(bags [B, D], the bag of each index [N], rows in each bag, the index of each maximum [B, D] or nothing)."""
    compute, device = compute_dtype(weight.dtype), weight.device
    indices, offsets = indices.to(device), offsets.to(device)
    count = offsets.shape[0]
    bags = count - 1 if include_last_offset else count
    features = weight.shape[1]
    position = torch.arange(indices.shape[0], device=device)
    starts = offsets[:bags].to(torch.int64)
    bag = torch.searchsorted(starts, position, right=True) - 1
    kept = _kept(indices, padding_idx)
    size = torch.zeros(count, dtype=torch.int64, device=device).scatter_add(0, bag, kept.to(torch.int64))
    rows = weight[indices].to(compute)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(compute)[:, None]
    place = bag[:, None].expand(rows.shape)
    if mode == _MAX:
        made, where = _maxima(rows, indices, kept, place, bags)
    else:
        total = torch.zeros((bags, features), dtype=compute, device=device)
        made = total.scatter_add(0, place, torch.where(kept[:, None], rows, 0))
        where = indices.new_empty(0)
        if mode == _MEAN:
            made = made / size[:bags, None].clamp(min=1)
    return made.to(weight.dtype), bag.to(indices.dtype), size.to(indices.dtype), where


def _maxima(rows: Any, indices: Any, kept: Any, place: Any, bags: Any) -> tuple[Any, Any]:
    """The maximum of each bag and the index of the first row that has it; zeros where a bag is empty."""
    low = torch.full((bags, rows.shape[1]), float("-inf"), dtype=rows.dtype, device=rows.device)
    candidates = torch.where(kept[:, None], rows, float("-inf"))
    made = aten.scatter_reduce.two(low, 0, place, candidates, "amax")
    count = rows.shape[0]
    position = torch.arange(count, device=rows.device)[:, None]
    is_largest = kept[:, None] & (rows == made.gather(0, place))
    none = torch.full(made.shape, count, dtype=torch.int64, device=rows.device)
    first = aten.scatter_reduce.two(none, 0, place, torch.where(is_largest, position, count), "amin")
    found = first < count
    padded = torch.cat([indices, indices.new_zeros(1)])
    return torch.where(found | made.isnan(), made, 0), padded[first]


def _backward(
    gradient: Any, indices: Any, offsets: Any, bag: Any, size: Any, maxima: Any, rows: Any, scale_grad_by_freq: bool,
    mode: int, sparse: bool, per_sample_weights: Any, padding_idx: int = -1,
) -> Any:  # fmt: skip
    if sparse:
        return NotImplemented
    return _dense(gradient, indices, bag, size, maxima, rows, scale_grad_by_freq, mode, per_sample_weights, padding_idx)


def _dense(
    gradient: Any, indices: Any, bag: Any, size: Any, maxima: Any, rows: Any, scale_grad_by_freq: bool, mode: int,
    per_sample_weights: Any, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """The gradient of the table [rows, D]."""
    compute = compute_dtype(gradient.dtype)
    wide = gradient.to(compute)
    made = torch.zeros((rows, gradient.shape[1]), dtype=compute, device=gradient.device)
    if mode == _MAX:
        shares = torch.where(size[: wide.shape[0], None] > 0, wide, 0)
        return made.scatter_add(0, maxima.to(torch.int64), shares).to(gradient.dtype)
    bag, indices = bag.to(torch.int64), indices.to(torch.int64)
    factor = _kept(indices, padding_idx).to(compute)
    if mode == _MEAN:
        factor = factor / size[bag].clamp(min=1)
    if scale_grad_by_freq:
        one = torch.ones((), dtype=torch.int64, device=gradient.device)
        times = torch.zeros((rows,), dtype=torch.int64, device=gradient.device)
        factor = factor / times.scatter_add(0, indices, one.expand(indices.shape))[indices]
    if per_sample_weights is not None:
        factor = factor * per_sample_weights.to(compute)
    shares = wide[bag] * factor[:, None]
    return made.scatter_add(0, indices[:, None].expand(shares.shape), shares).to(gradient.dtype)


def _weights_backward(
    gradient: Any, weight: Any, indices: Any, offsets: Any, bag: Any, mode: int, padding_idx: int = -1
) -> Any:
    """The gradient of each index's weight [N]."""
    compute = compute_dtype(gradient.dtype)
    along = (gradient.to(compute)[bag] * weight.to(compute)[indices]).sum(1)
    return torch.where(_kept(indices, padding_idx), along, 0).to(gradient.dtype)


def _renormed(weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    """``weight`` with the rows at ``indices`` scaled down to a norm of ``max_norm``."""
    flat = indices.reshape(-1)
    rows = weight[flat]
    wide = rows.to(compute_dtype(weight.dtype))
    norm = torch.linalg.vector_norm(wide, norm_type, 1, keepdim=True)
    scaled = (wide * (max_norm / (norm + 1e-7))).to(weight.dtype)
    return aten.index_put.default(weight, [flat], torch.where(norm > max_norm, scaled, rows))


TABLE: dict[Any, Callable[..., Any]] = {
    aten._embedding_bag.default: _bags,
    aten._embedding_bag_forward_only.default: _bags,
    aten._embedding_bag_backward.default: _backward,
    aten._embedding_bag_dense_backward.default: _dense,
    aten._embedding_bag_per_sample_weights_backward.default: _weights_backward,
    aten.embedding_renorm.default: _renormed,
}
