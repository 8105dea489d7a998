"""Scatters and gathers that are others in disguise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

from .dtypes import compute_dtype

aten = torch.ops.aten


def _index_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    if x.dim() == 0:
        return aten.scatter_reduce.two(x, 0, index.reshape(()), source, reduce, include_self=include_self)
    dim = dim % x.dim()
    shape = [1] * source.dim()
    shape[dim] = -1
    wide = index.to(torch.int64).reshape(shape).expand(source.shape)
    return aten.scatter_reduce.two(x, dim, wide, source, reduce, include_self=include_self)


def _scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    """The mean as a sum over a count; the others have kernels. Half-precision sums and products round once."""
    dtype, compute = x.dtype, compute_dtype(x.dtype)
    if dtype != compute and reduce in ("sum", "prod", "mean"):
        wide = aten.scatter_reduce.two(x.to(compute), dim, index, src.to(compute), reduce, include_self=include_self)
        return wide.to(dtype)
    if reduce != "mean":
        return NotImplemented
    total = aten.scatter_reduce.two(x, dim, index, src, "sum", include_self=include_self)
    kind = dtype if dtype.is_floating_point else torch.int32
    start = torch.full(x.shape, 1 if include_self else 0, dtype=kind, device=x.device)
    one = torch.ones((), dtype=kind, device=x.device)
    count = aten.scatter_add.default(start, dim, index, one.expand(index.shape))
    if not include_self:
        count = count.clamp(min=1)
    return total / count if dtype.is_floating_point else torch.div(total, count, rounding_mode="floor").to(dtype)


def _scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    """Half-precision sums in float32: thousands of additions that each round would stop to count."""
    compute = compute_dtype(x.dtype)
    if compute == x.dtype:
        return NotImplemented
    return aten.scatter_add.default(x.to(compute), dim, index, src.to(compute)).to(x.dtype)


def _scatter(overload: Any) -> Callable[..., Any]:
    """aten.scatter.reduce and aten.scatter.value_reduce: half-precision sums and products round once."""

    def scatter(x: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
        compute = compute_dtype(x.dtype)
        if compute == x.dtype:
            return NotImplemented
        source = src.to(compute) if isinstance(src, torch.Tensor) else src
        return overload(x.to(compute), dim, index, source, reduce=reduce).to(x.dtype)

    return scatter


def _added(overload: Any) -> Callable[..., Any]:
    """An index_put whose half-precision sums round once; without sums it stays as it is."""

    def put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
        compute = compute_dtype(x.dtype)
        if compute == x.dtype or not accumulate:
            return NotImplemented
        return overload(x.to(compute), indices, values.to(compute), True).to(x.dtype)

    return put


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False) -> Any:
    return aten.index_put.default(x, indices, values, accumulate)


def _masked_put(x: Any, mask: Any, indices: Any, values: Any) -> Any:
    """torch's, with half-precision sums rounded once."""
    compute = compute_dtype(x.dtype)
    put = decomposition_table[aten._unsafe_masked_index_put_accumulate.default]
    return put(x.to(compute), mask, indices, values.to(compute)).to(x.dtype)


def _index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    if x.dim() == 0:
        return x + (source * alpha).reshape(-1).sum().to(x.dtype)
    place = [None] * (dim % x.dim()) + [index.reshape(-1)]
    added = source if type(alpha) is int and alpha == 1 else (source * alpha).to(x.dtype)
    return aten.index_put.default(x, place, added, True)


def _nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    """Flat positions go to the slots that a prefix sum of the flags gives, and one slot takes all the rest."""
    flags = x.reshape(-1) != 0
    count = flags.to(torch.int64).cumsum(0)
    slot = torch.where(flags & (count <= size), count - 1, size)
    position = torch.arange(flags.shape[0], device=x.device)
    found = torch.full((size + 1,), -1, dtype=torch.int64, device=x.device).scatter(0, slot, position)[:size]
    columns = []
    step = 1
    for length in reversed(x.shape):
        columns.append(torch.where(found < 0, fill_value, found // step % length))
        step = step * length
    if not columns:
        return torch.empty((size, 0), dtype=torch.int64, device=x.device)
    return torch.stack(columns[::-1], 1)


def _take(x: Any, index: Any) -> Any:
    return aten.index.Tensor(x.reshape(-1), [index])


TABLE: dict[Any, Callable[..., Any]] = {
    aten.index_reduce.default: _index_reduce,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.scatter_add.default: _scatter_add,
    aten.scatter.reduce: _scatter(aten.scatter.reduce),
    aten.scatter.value_reduce: _scatter(aten.scatter.value_reduce),
    aten.index_put.default: _added(aten.index_put.default),
    aten._unsafe_index_put.default: _added(aten._unsafe_index_put.default),
    aten._index_put_impl.default: _index_put,
    aten._unsafe_masked_index_put_accumulate.default: _masked_put,
    aten.index_add.default: _index_add,
    aten.nonzero_static.default: _nonzero_static,
    aten.take.default: _take,
}
