"""Puts our lowerings in front of Inductor's, for this device alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from . import scatters
from .convolution import convolution
from .matmul import addmm, mm

aten = torch.ops.aten

_LOWERINGS: dict[Any, Callable[..., Any]] = {
    aten.mm: mm,
    aten.bmm: mm,
    aten.addmm: addmm,
    aten.baddbmm: addmm,
    aten.convolution: convolution,
}

# Overload packet -> function from Inductor's lowering to ours.
_AROUND: dict[Any, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    aten.scatter_reduce: functools.partial(scatters.scatter_reduce, copies=True),
    aten.scatter_reduce_: functools.partial(scatters.scatter_reduce, copies=False),
    aten.scatter_add: functools.partial(scatters.scatter_add, copies=True),
    aten.scatter_add_: functools.partial(scatters.scatter_add, copies=False),
    aten.scatter: functools.partial(scatters.scatter, copies=True),
    aten.scatter_: functools.partial(scatters.scatter, copies=False),
    **dict.fromkeys(
        (aten.index_put, aten.index_put_, aten._unsafe_index_put, aten._unsafe_masked_index_put_accumulate),
        scatters.with_every_dtype,
    ),
    torch.ops.prims._unsafe_index_put_: scatters.with_every_dtype,
}


def register() -> None:
    """Install the lowerings; tensors of every other device keep Inductor's own."""
    for packet, ours in _LOWERINGS.items():
        _wrap(packet, functools.partial(_dispatch, ours))
    for packet, around in _AROUND.items():
        _wrap(packet, functools.partial(_around, around))
    _wrap(torch.ops.prims.device_put, lambda original: _dispatch(functools.partial(_blocking, original), original))
    _wrap(aten.var_mean, lambda original: _dispatch(functools.partial(_var_mean, original), original))
    for packet in (aten.argmax, aten.argmin):
        _wrap(packet, _flat)


def _wrap(packet: Any, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper around Inductor's lowering of an operator, once."""
    for overload in (packet, *(getattr(packet, name) for name in packet.overloads())):
        original = lowering.lowerings.get(overload)
        if original is not None and not getattr(original, "vkinductor", False):
            lowering.lowerings[overload] = wrapper(original)


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


def _around(around: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return _dispatch(around(original), original)


def _blocking(original: Callable[..., Any], x: Any, device: Any, non_blocking: bool = False) -> Any:
    """A copy that need not block would be waited for through an event, which a device in Python cannot offer."""
    return original(x, device)


def _var_mean(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """The mean of nothing is NaN; Inductor's is 0."""
    variance, mean = original(x, *args, **kwargs)
    if V.graph.sizevars.statically_known_equals(sympy_product(x.get_size()), 0):
        mean = lowering.full_like(mean, float("nan"))
    return variance, mean


def _dispatch(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lower(*args: Any, **kwargs: Any) -> Any:
        device = next((a.get_device() for a in args if isinstance(a, ir.IRNode)), None)
        if device is None or device.type != "vulkan" or kwargs.get("out_dtype") is not None:
            return original(*args, **kwargs)
        kwargs.pop("out_dtype", None)
        return ours(*args, **kwargs)

    lower.vkinductor = True  # type: ignore[attr-defined]
    return lower
