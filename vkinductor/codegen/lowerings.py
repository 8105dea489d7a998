"""Puts our lowerings in front of Inductor's, for this device alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

from vkinductor.device import attention as attention_operators
from vkinductor.device import attention_step as attention_step_operator
from vkinductor.device import fused_linear as fused_operators
from vkinductor.device import linear_argmax as argmax_operator
from vkinductor.device import operators
from vkinductor.device import quantized as quantized_operators
from vkinductor.device import sampling as sampling_operators

from . import (
    attention,
    channels,
    ctc,
    fused,
    library_operators,
    long_places,
    loop_limit,
    quantized,
    sampling,
    scatters,
    tables,
)
from .attention import flex
from .convolution import convolution, convolution_backward
from .gemm import addmm, int_mm, mm
from .log_sums import logcumsumexp
from .sorting import sort, sort_stable

aten = torch.ops.aten

_LOWERINGS: dict[Any, Callable[..., Any]] = {
    aten.mm: mm,
    aten.bmm: mm,
    aten.addmm: addmm,
    aten.baddbmm: addmm,
    aten._int_mm: int_mm,
    aten.convolution: convolution,
    aten.logcumsumexp: logcumsumexp,
    aten.gcd.default: library_operators.gcd,
    aten.sort: sort,
    aten.sort.stable: sort_stable,
    aten.convolution_backward: convolution_backward,
    torch.ops.higher_order.flex_attention: flex.forward,
    torch.ops.higher_order.flex_attention_backward: flex.backward,
}

# Operators of our own, which Inductor has no lowering of.
_OWN: dict[Any, Callable[..., Any]] = {
    attention_operators.attention: attention.forward,
    attention_operators.attention_backward: attention.backward,
    attention_step_operator.attention_step: attention.attention_step,
    operators.ctc_states: ctc.states,
    operators.draw: library_operators.draw,
    operators.scale_and_shift: channels.scale_and_shift,
    fused_operators.fused_linear: fused.fused_linear,
    argmax_operator.linear_argmax: fused.linear_argmax,
    quantized_operators.dequantize: quantized.dequantize,
    quantized_operators.dequantize_rows: quantized.dequantize_rows,
    quantized_operators.quantized_linear: quantized.quantized_linear,
    sampling_operators.sample: sampling.sample,
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
    **dict.fromkeys((aten.cos, aten.sin), tables.realizing),
}


def register() -> None:
    """Install the lowerings; tensors of every other device keep Inductor's own."""
    for op, ours in _LOWERINGS.items():
        # An overload that is not named here keeps Inductor's.
        names = (op, op.default) if isinstance(op, torch._ops.OpOverloadPacket) else (op,)
        _wrap(names, functools.partial(_dispatch, ours))
    for op, ours in _OWN.items():
        lowering.register_lowering(op, type_promotion_kind=None)(ours)
    for packet, around in _AROUND.items():
        _wrap(_all(packet), functools.partial(_dispatch_around, around))
    for packet, function in (
        (torch.ops.prims.device_put, _blocking),
        (aten.var_mean, _var_mean),
        (aten.any, _any),
        (aten.pow, _pow),
    ):
        _wrap(_all(packet), functools.partial(_dispatch_around, functools.partial(functools.partial, function)))
    for name, operation in loop_limit.LOOPING.items():
        own = [o for o in _all(getattr(aten, name)) if not _is_fallback(o)]
        _wrap(tuple(own), functools.partial(_dispatch_around, loop_limit.realizing(operation)))
    for packet, largest in ((aten.argmax, True), (aten.argmin, False)):
        _wrap(_all(packet), functools.partial(_places, largest))
    for packet, largest in ((aten.max, True), (aten.min, False)):
        around = functools.partial(long_places.values_and_places, largest=largest)
        _wrap((packet, packet.dim), functools.partial(_dispatch_around, around))
    for overload in (aten.convolution.default, aten.convolution_backward.default):
        _any_strides(overload)


def _dispatch_around(around: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return _dispatch(around(original), original)


def _all(packet: Any) -> tuple[Any, ...]:
    return (packet, *(getattr(packet, name) for name in packet.overloads()))


def _is_fallback(overload: Any) -> bool:
    return bool(getattr(lowering.lowerings.get(overload), "_is_fallback_handler", False))


def _wrap(overloads: tuple[Any, ...], wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper around Inductor's lowerings of an operator, once."""
    for overload in overloads:
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


def _places(largest: bool, original: Callable[..., Any]) -> Callable[..., Any]:
    return _flat(long_places.places(original, largest))


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


def _blocking(original: Callable[..., Any], x: Any, device: Any, non_blocking: bool = False) -> Any:
    """A copy that need not block would be waited for through an event, which a device in Python cannot offer."""
    return original(x, device)


def _var_mean(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """The mean of nothing is NaN; Inductor's is 0."""
    variance, mean = original(x, *args, **kwargs)
    if V.graph.sizevars.statically_known_equals(sympy_product(x.get_size()), 0):
        mean = lowering.full_like(mean, float("nan"))
    return variance, mean


def _pow(original: Callable[..., Any], base: Any, exponent: Any) -> Any:
    """Powers of integers too, which Inductor leaves to torch."""
    dtype = lowering.get_promoted_dtype(base, exponent, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    if dtype.is_floating_point or dtype == torch.bool:
        return original(base, exponent)
    tensors = [lowering.to_dtype(v, dtype) if isinstance(v, ir.TensorBox) else v for v in (base, exponent)]
    if all(isinstance(v, ir.TensorBox) for v in tensors):
        tensors = lowering.broadcast_tensors(*tensors)
    return loop_limit.realizing("pow")(lowering.pow_native)(*tensors)


def _any(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """uint8 of uint8, as in torch; Inductor's is bool."""
    result = original(x, *args, **kwargs)
    return lowering.to_dtype(result, torch.uint8) if x.get_dtype() == torch.uint8 else result


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
