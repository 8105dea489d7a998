"""Reductions of segments, whose ends are data, and the hash of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .dtypes import compute_dtype

aten = torch.ops.aten

# torch's name -> that of scatter_reduce, and what an empty segment gives.
_REDUCTIONS = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "prod": ("prod", 1.0),
    "max": ("amax", float("-inf")),
    "min": ("amin", float("inf")),
}


def _segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0,
    unsafe: bool = False, initial: Any = None,
) -> Any:  # fmt: skip
    """As a scatter: a binary search among the ends gives each element's segment, one more takes what is in none."""
    if indices is not None or (lengths is None and offsets is None):
        return NotImplemented
    axis = axis % data.dim()
    if lengths is not None:
        ends = lengths.to(torch.int64).cumsum(-1)
        count, skipped = lengths, 0
    else:
        ends = offsets.to(torch.int64)
        count, skipped = offsets.diff(dim=-1), 1
    segments = count.shape[-1]
    position = torch.arange(data.shape[axis], device=data.device).expand(*ends.shape[:-1], data.shape[axis])
    segment = torch.searchsorted(ends.contiguous(), position.contiguous(), right=True) - skipped
    segment = torch.where(segment < 0, segments, segment)
    inner = [1] * (data.dim() - axis - 1)
    index = segment.reshape(*segment.shape, *inner).expand(data.shape)
    count = count.reshape(*count.shape, *inner)
    how, empty = _REDUCTIONS[reduce]
    wide = data.to(compute_dtype(data.dtype))
    shape = [*data.shape[:axis], segments + 1, *data.shape[axis + 1 :]]
    start = torch.full(shape, empty if initial is None else initial, dtype=wide.dtype, device=data.device)
    made = aten.scatter_reduce.two(start, axis, index, wide, how).narrow(axis, 0, segments)
    if reduce == "mean":
        nothing = float("nan") if initial is None else initial
        made = torch.where(count > 0, made / count, nothing)
    return made.to(data.dtype).contiguous()


def _hash(x: Any, dim: Any = (), *, keepdim: bool = False, mode: int = 0) -> Any:
    """The bits of doubles or int64, combined by exclusive or."""
    if mode != 0 or x.is_complex() or x.numel() == 0:
        return NotImplemented
    bits = x.to(torch.float64).view(torch.int64) if x.is_floating_point() else x.to(torch.int64)
    if x.dim() == 0:
        return bits.view(torch.uint64).clone()
    dims = sorted({d % x.dim() for d in dim} if len(dim) else range(x.dim()))
    made = torch.ops.prims.xor_sum.default(bits, dims)
    if keepdim:
        for d in dims:
            made = made.unsqueeze(d)
    return made.view(torch.uint64)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.hash_tensor.default: _hash,
    aten.segment_reduce.default: _segment_reduce,
}
