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


def _segments(data: Any, lengths: Any, offsets: Any, axis: int) -> tuple[Any, Any]:
    """(the segment of each element of ``data``, how many each holds): a binary search among the segments' ends."""
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
    return segment.reshape(*segment.shape, *inner).expand(data.shape), count.reshape(*count.shape, *inner)


def _segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0,
    unsafe: bool = False, initial: Any = None,
) -> Any:  # fmt: skip
    """As a scatter: the last segment takes what is in none."""
    if indices is not None or (lengths is None and offsets is None):
        return NotImplemented
    axis = axis % data.dim()
    index, count = _segments(data, lengths, offsets, axis)
    segments = count.shape[axis]
    how, empty = _REDUCTIONS[reduce]
    wide = data.to(compute_dtype(data.dtype))
    shape = [*data.shape[:axis], segments + 1, *data.shape[axis + 1 :]]
    start = torch.full(shape, empty if initial is None else initial, dtype=wide.dtype, device=data.device)
    made = aten.scatter_reduce.two(start, axis, index, wide, how).narrow(axis, 0, segments)
    if reduce == "mean":
        nothing = float("nan") if initial is None else initial
        made = torch.where(count > 0, made / count, nothing)
    return made.to(data.dtype).contiguous()


def _segment_reduce_backward(
    gradient: Any, output: Any, data: Any, reduce: str, *, lengths: Any = None, offsets: Any = None, axis: int = 0,
    initial: Any = None,
) -> Any:  # fmt: skip
    """Each element's share of its segment's gradient; 0 for what is in none."""
    axis = axis % data.dim()
    index, count = _segments(data, lengths, offsets, axis)
    segments = count.shape[axis]
    inside = index < segments
    place = index.clamp(max=segments - 1)
    compute = compute_dtype(data.dtype)
    own = gradient.to(compute).gather(axis, place)
    x = data.to(compute)

    def add(values: Any, how: str = "sum", start: Any = 0) -> Any:
        """The sum of values over each segment, for each element."""
        shape = [*data.shape[:axis], segments + 1, *data.shape[axis + 1 :]]
        room = torch.full(shape, start, dtype=values.dtype, device=data.device)
        return aten.scatter_reduce.two(room, axis, index, values, how).gather(axis, place)

    if reduce == "mean":
        own = own / count.expand(gradient.shape).gather(axis, place)
    elif reduce in ("max", "min"):
        chosen = x.isnan() | (data == output.gather(axis, place))
        shared = own / add(chosen.to(torch.int32)).clamp(min=1)
        # As torch has it: equals share a positive gradient, and each gets a negative one whole.
        own = torch.where(chosen, torch.where(own > 0, shared, own), 0)
    elif reduce == "prod":
        own = own * _other_factors(x, output.to(compute).gather(axis, place), add, 1 if initial is None else initial)
    return torch.where(inside, own, 0).to(data.dtype)


def _other_factors(x: Any, product: Any, add: Callable[..., Any], initial: Any) -> Any:
    """The product of a segment without x: divided where that can be, else of the other factors."""
    zero, odd = x == 0, x.isnan()
    plain = ~(zero | odd)
    rest = add(torch.where(plain, x, 1), "prod", 1) * initial
    zeros = add(zero.to(torch.int32)) - zero.to(torch.int32)
    odds = add(odd.to(torch.int32)) - odd.to(torch.int32)
    rest = torch.where(odds > 0, float("nan"), torch.where(zeros > 0, 0, rest))
    return torch.where(plain, product / torch.where(plain, x, 1), rest)


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
    aten._segment_reduce_backward.default: _segment_reduce_backward,
}
