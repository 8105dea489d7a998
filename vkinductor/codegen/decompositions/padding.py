"""The gradient of padding with copies of the border: each element gathers what was copied from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .dtypes import compute_dtype

aten = torch.ops.aten


def _replication_backward(gradient: Any, x: Any, padding: Sequence[int]) -> Any:
    """``padding``: (before, after) of the last dimension, then of those before it; negative ones cut."""
    dims = len(padding) // 2
    compute = compute_dtype(x.dtype)
    places: list[Any] = [None] * (x.dim() - dims)
    for d in range(dims):
        at = d - dims
        before = padding[2 * (dims - 1 - d)]
        o = torch.arange(gradient.shape[at], device=x.device)
        place = (o - before).clamp(min=0).clamp(max=x.shape[at] - 1)
        places.append(place.view(-1, *[1] * (dims - 1 - d)))
    made = torch.zeros(x.shape, dtype=compute, device=x.device)
    return aten.index_put.default(made, places, gradient.to(compute), True).to(x.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.replication_pad1d_backward.default: _replication_backward,
    aten.replication_pad2d_backward.default: _replication_backward,
    aten.replication_pad3d_backward.default: _replication_backward,
}
