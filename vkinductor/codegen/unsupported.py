"""Operators whose lowering needs an expression that GLSL kernels do not have: they run as eager operators instead.

Inductor has one lowering for all devices and notices what a backend lacks when it writes the kernel, which is too late
to do anything but fail.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.codegen.common import OpOverrides, pointwise_overrides_data
from torch._inductor.ops_handler import OpsHandler
from torch.utils import _pytree as pytree

from .ops import GlslOverrides

# What the kernel or the scheduler answers, or a lowering asks for behind a feature of the backend.
_ELSEWHERE = {
    "load", "store", "store_reduction", "reduction", "scan", "sort", "bucketize", "partial_accumulate", "output",
    "placeholder", "device_assert_async", "check_bounds", "halide_clamp", "getitem",
}  # fmt: skip


@functools.cache
def missing() -> frozenset[str]:
    """Names of Inductor's pointwise operators that ``GlslOverrides`` does not write."""
    names = {n for n in vars(OpsHandler) if not n.startswith("_")} | set(pointwise_overrides_data)
    inherited = {n for n in names if getattr(GlslOverrides, n, None) in (None, getattr(OpsHandler, n, ()))}
    marked = {n for n in names if getattr(getattr(GlslOverrides, n, None), "is_unimplemented", False)}
    same = {n for n in vars(OpOverrides) if getattr(OpOverrides, n) is not getattr(OpsHandler, n, None)}
    return frozenset((inherited - same | marked) - _ELSEWHERE)


def register() -> None:
    """Guard every lowering of Inductor's; what other devices get from them does not change."""
    for overload, original in list(lowering.lowerings.items()):
        fallback = getattr(original, "_is_fallback_handler", False)
        if isinstance(overload, torch._ops.OpOverload) and not fallback and not hasattr(original, "guarded"):
            lowering.lowerings[overload] = _guard(overload, original)


def _guard(overload: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lower(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if missing() and any(_is_beyond(leaf) for leaf in pytree.tree_leaves(result)):
            return lowering.fallback_handler(overload, add_to_fallback_set=False)(*args, **kwargs)
        return result

    lower.guarded = True  # type: ignore[attr-defined]
    return lower


def _is_beyond(value: Any) -> bool:
    """Whether ``value`` is computed on this device by expressions that GLSL lacks."""
    while isinstance(value, (ir.TensorBox, ir.StorageBox, ir.BaseView, ir.ComputedBuffer)):
        value = value.data
    if not isinstance(value, ir.Loops) or value.device is None or value.device.type != "vulkan":
        return False
    return not missing().isdisjoint(value.inner_fn_opcount().used_ops)
