"""Shapes of results that torch does not tell: operators without which no graph can be made of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def _like(position: int) -> Callable[..., Any]:
    """The result has the shape and dtype of an argument."""
    return lambda *args, **kwargs: torch.empty_like(args[position], memory_format=torch.contiguous_format)


def _broadcast(a: torch.Tensor, b: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
    return a.new_empty(torch.broadcast_shapes(a.shape, b.shape))


_SHAPES: dict[str, Callable[..., Any]] = {
    "_sample_dirichlet": _like(0),
    "_transformer_encoder_layer_fwd": _like(0),
    "binomial": _broadcast,
    "fractional_max_pool3d_backward": _like(1),
    "multi_margin_loss_backward": _like(1),
    "multilabel_margin_loss_backward": _like(1),
}


@functools.cache
def register() -> torch.library.Library:
    """Tell torch, where it does not know better."""
    library = torch.library.Library("aten", "IMPL")
    for name, shape in _SHAPES.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, shape, "Meta")
    return library
