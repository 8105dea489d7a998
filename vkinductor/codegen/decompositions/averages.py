"""Averages of windows, given and adaptive, and their gradients: what Inductor leaves to eager kernels.

It lowers small windows of known sizes itself. The others are a resampling, one dimension after another: the divisor of
a window is the product of those of its dimensions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .dtypes import compute_dtype
from .resampling import Taps, Weight, resample

aten = torch.ops.aten

# Inductor unrolls windows of so many elements (in gradients: of outputs), and leaves larger ones to eager kernels.
_UNROLLED = {1: 25, 2: 25, 3: 125}


def each(values: Any, dims: int) -> list[Any]:
    """A number for each dimension, where one may stand for all."""
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    return values * dims if len(values) == 1 else values


def _exchanged(weight: Weight) -> Weight:
    return lambda i, o: weight(o, i)


# Windows of a given size ------------------------------------------------------------------------------------


def _share(n: Any, kernel: int, stride: int, padding: int, with_padding: bool, divides: bool, dtype: Any) -> Weight:
    """Of element i in the average of window o; 1 where that divides by something else."""

    def weight(o: Any, i: Any) -> Any:
        begin = o * stride - padding
        end = (begin + kernel).clamp(max=n + padding)
        inside = (i >= begin) & (i < end)
        if not divides:
            return torch.where(inside, 1.0, 0.0)
        count = end - begin if with_padding else end.clamp(max=n) - begin.clamp(min=0)
        return torch.where(inside, 1.0 / count.to(dtype), 0.0)

    return weight


def _is_small(windows: Sequence[int]) -> bool:
    return functools.reduce(operator.mul, windows) <= _UNROLLED[len(windows)]


def _pool(dims: int) -> Callable[..., Any]:
    def pool(
        x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Any:  # fmt: skip
        kernel, padding = each(kernel_size, dims), each(padding, dims)
        stride = each(stride, dims) if stride else kernel
        if _is_small(kernel) or kernel == stride:
            return NotImplemented
        sizes = x.shape[-dims:]
        taps = []
        for n, o, k, s, p in zip(
            sizes, _counts(sizes, kernel, stride, padding, ceil_mode), kernel, stride, padding, strict=True
        ):
            weight = _share(n, k, s, p, count_include_pad, divisor_override is None, compute_dtype(x.dtype))
            taps.append(Taps(o, torch.arange(o, device=x.device) * s - p, k, weight))
        return _divided(resample(x, taps), divisor_override)

    return pool


def _pool_backward(dims: int) -> Callable[..., Any]:
    overload = getattr(aten, f"avg_pool{dims}d_backward").default

    def backward(
        gradient: Any, x: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
        divisor_override: Any,
    ) -> Any:  # fmt: skip
        kernel, pads = each(kernel_size, dims), each(padding, dims)
        steps = each(stride, dims) if stride else kernel
        if _is_small([-(-k // s) for k, s in zip(kernel, steps, strict=True)]):
            if [kernel, steps, pads] == [list(kernel_size), list(stride), list(padding)]:
                return NotImplemented
            # Inductor wants a number for each dimension.
            return overload(gradient, x, kernel, steps, pads, ceil_mode, count_include_pad, divisor_override)
        taps = []
        for n, k, s, p in zip(x.shape[-dims:], kernel, steps, pads, strict=True):
            weight = _share(n, k, s, p, count_include_pad, divisor_override is None, compute_dtype(x.dtype))
            i = torch.arange(n, device=x.device)
            first = torch.div(i + p - k + s, s, rounding_mode="floor")
            taps.append(Taps(n, first, -(-k // s), _exchanged(weight)))
        return _divided(resample(gradient, taps), divisor_override)

    return backward


def _divided(total: Any, divisor: Any) -> Any:
    return total if divisor is None else total / divisor


def _counts(sizes: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool) -> list[Any]:
    """How many windows there are: those that begin inside of x or of the padding before it."""
    counts = []
    for n, k, s, p in zip(sizes, kernel, stride, padding, strict=True):
        count = (n + 2 * p - k + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count = count - 1
        counts.append(count)
    return counts


# Adaptive ones ----------------------------------------------------------------------------------------------


def is_unrolled(sizes: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Whether Inductor lowers adaptive windows of two dimensions itself: their sizes are known, and small or equal."""
    if not all(isinstance(n, int) and n for n in (*sizes, *outputs)):
        return False
    if all(n % o == 0 for n, o in zip(sizes, outputs, strict=True)):
        return True
    return functools.reduce(operator.mul, (-(-(n + o - 1) // o) for n, o in zip(sizes, outputs, strict=True))) <= 25


def _average(inputs: Any, outputs: Any, dtype: Any) -> Weight:
    def weight(o: Any, i: Any) -> Any:
        begin, end = o * inputs // outputs, ((o + 1) * inputs + outputs - 1) // outputs
        return torch.where((i >= begin) & (i < end), 1.0 / (end - begin).to(dtype), 0.0)

    return weight


def _adaptive(x: Any, output_size: Any) -> Any:
    sizes = x.shape[x.dim() - len(output_size) :]
    if len(sizes) == 2 and is_unrolled(sizes, output_size):
        return NotImplemented
    dtype, taps = compute_dtype(x.dtype), []
    for inputs, outputs in zip(sizes, output_size, strict=True):
        o = torch.arange(outputs, device=x.device)
        taps.append(Taps(outputs, o * inputs // outputs, inputs // outputs + 2, _average(inputs, outputs, dtype)))
    return resample(x, taps)


def _adaptive_backward(dims: int) -> Callable[..., Any]:
    def backward(gradient: Any, x: Any) -> Any:
        taps = []
        for inputs, outputs in zip(x.shape[-dims:], gradient.shape[-dims:], strict=True):
            weight = _average(inputs, outputs, compute_dtype(x.dtype))
            i = torch.arange(inputs, device=x.device)
            taps.append(Taps(inputs, i * outputs // inputs, outputs // inputs + 2, _exchanged(weight)))
        return resample(gradient, taps)

    return backward


TABLE: dict[Any, Callable[..., Any]] = {
    aten.avg_pool2d.default: _pool(2),
    aten.avg_pool3d.default: _pool(3),
    aten.avg_pool2d_backward.default: _pool_backward(2),
    aten.avg_pool3d_backward.default: _pool_backward(3),
    aten._adaptive_avg_pool2d.default: _adaptive,
    aten._adaptive_avg_pool3d.default: _adaptive,
    aten._adaptive_avg_pool2d_backward.default: _adaptive_backward(2),
    aten._adaptive_avg_pool3d_backward.default: _adaptive_backward(3),
}
