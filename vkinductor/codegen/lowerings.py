"""Puts our lowerings in front of Inductor's, for this device alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.utils import sympy_product

from .convolution import convolution, convolution_backward
from .matmul import addmm, mm

aten = torch.ops.aten

_LOWERINGS: dict[Any, Callable[..., Any]] = {
    aten.mm: mm,
    aten.bmm: mm,
    aten.addmm: addmm,
    aten.baddbmm: addmm,
    aten.convolution: convolution,
    aten.convolution_backward: convolution_backward,
}


def register() -> None:
    """Install the lowerings; tensors of every other device keep Inductor's own."""
    for packet, ours in _LOWERINGS.items():
        _wrap(packet, functools.partial(_dispatch, ours))
    for packet in (aten.argmax, aten.argmin):
        _wrap(packet, _flat)
    for overload in (aten.convolution.default, aten.convolution_backward.default):
        _any_strides(overload)


def _wrap(packet: Any, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper around Inductor's lowering of an operator, once."""
    for overload in (packet, packet.default):
        original = lowering.lowerings.get(overload)
        if original is not None and not getattr(original, "vkinductor", False):
            lowering.lowerings[overload] = wrapper(original)


def _any_strides(overload: Any) -> None:
    """Let the operands of an operator whose template reads any strides come as they are, instead of as in eager."""
    original = lowering.maybe_layout_constraints(overload)
    if original is None or getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def constrain(node: Any, *args: Any, **kwargs: Any) -> Any:
        device = next((a.get_device() for a in args if isinstance(a, ir.IRNode)), None)
        return (args, kwargs) if device is not None and device.type == "vulkan" else original(node, *args, **kwargs)

    constrain.vkinductor = True  # type: ignore[attr-defined]
    lowering.add_layout_constraint(overload, constrain)


def _flat(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let argmax or argmin of a whole tensor reduce one dimension.

    Inductor orders the loops of several by memory, and the position in that order is not the logical one that torch
    counts. For Triton it hands positions to the kernel, though not where the operand is computed in the same kernel.
    """

    @functools.wraps(original)
    def lower(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        device, size = x.get_device(), x.get_size()
        if device is None or device.type != "vulkan" or dim is not None or len(size) < 2:
            return original(x, dim, keepdim)
        view = lowering.lowerings[aten.view.default]
        result = original(view(x, [sympy_product(size)]), 0, False)
        return view(result, [1] * len(size)) if keepdim else result

    lower.vkinductor = True  # type: ignore[attr-defined]
    return lower


def _dispatch(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lower(*args: Any, **kwargs: Any) -> Any:
        device = next((a.get_device() for a in args if isinstance(a, ir.IRNode)), None)
        if device is None or device.type != "vulkan" or kwargs.get("out_dtype") is not None:
            return original(*args, **kwargs)
        kwargs.pop("out_dtype", None)
        return ours(*args, **kwargs)

    lower.vkinductor = True  # type: ignore[attr-defined]
    # Ours is none, whatever the original is.
    lower._is_fallback_handler = False  # type: ignore[attr-defined]
    return lower
