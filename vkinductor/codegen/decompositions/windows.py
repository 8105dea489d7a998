"""Maxima of windows: what Inductor gets wrong (positions in three dimensions) or leaves to eager kernels.

A window is a start in each dimension and how many elements, some steps apart; all windows of a call are read as if of
the same extent, with the last element again where one is shorter (which changes no maximum, and not which is first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .averages import each
from .dtypes import compute_dtype

aten = torch.ops.aten


@dataclass(frozen=True)
class Windows:
    """In one dimension: ``start`` of each (a tensor; leading dimensions as x's where they differ), and which elements
    low .. high of ``extent``, ``step`` apart, are inside."""

    start: Any
    low: Any
    high: Any
    extent: Any
    step: int = 1


def maxima(x: Any, windows: Sequence[Windows]) -> tuple[Any, Any]:
    """The largest element of each window and its position in the flattened space; the first of equals, or NaN."""
    dims = len(windows)
    space = x.shape[x.dim() - dims :]
    extent: Any = 1
    for w in windows:
        extent = extent * w.extent

    def position(nth: Any) -> Any:
        """Where element ``nth`` of each window lies."""
        flat: Any = 0
        below = extent
        for d, w in enumerate(windows):
            below = below // w.extent
            k = nth // below % w.extent
            shape = [*w.start.shape[:-1], *[1] * d, w.start.shape[-1], *[1] * (dims - d)]
            k = torch.minimum(torch.maximum(k, w.low.view(shape)), w.high.view(shape))
            flat = flat * space[d] + w.start.view(shape) + k * w.step
        return flat

    at = position(torch.arange(extent, device=x.device))
    lead = x.shape[: x.dim() - dims]
    flat = x.flatten(len(lead))
    if at.dim() > dims + 1:
        values = flat.gather(-1, at.flatten(len(lead))).view(*lead, *at.shape[-dims - 1 :])
    else:
        values = flat[..., at]
    best = values.argmax(-1, keepdim=True)
    return values.amax(-1), position(best).squeeze(-1).expand(values.shape[:-1]).contiguous()


def spread(gradient: Any, x: Any, indices: Any, dims: int) -> Any:
    """The gradient of ``maxima``: each element goes where its maximum came from."""
    lead = x.shape[: x.dim() - dims]
    made = torch.zeros_like(x, dtype=compute_dtype(x.dtype), memory_format=torch.contiguous_format)
    flat = made.flatten(len(lead))
    source = gradient.to(flat.dtype).flatten(len(lead))
    return flat.scatter_add(-1, indices.flatten(len(lead)), source).view(x.shape).to(x.dtype)


def _max_pool3d(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    kernel, padding, dilation = each(kernel, 3), each(padding, 3), each(dilation, 3)
    stride = each(stride, 3) if stride else kernel
    windows = []
    for n, k, s, p, d in zip(x.shape[-3:], kernel, stride, padding, dilation, strict=True):
        reach = n + 2 * p - d * (k - 1) - 1
        count = (reach + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count = count - 1
        start = torch.arange(count, device=x.device) * s - p
        # Divided as floats: torch 2.13 loses the bounds of integer quotients that select an element.
        low = ((-start).clamp(min=0) / d).ceil().to(torch.int64)
        windows.append(Windows(start, low, ((n - 1 - start) / d).floor().to(torch.int64), k, d))
    return maxima(x, windows)


def _max_pool3d_backward(gradient: Any, x: Any, *rest: Any) -> Any:
    return spread(gradient, x, rest[-1], 3)


def _adaptive_max(dims: int) -> Callable[..., Any]:
    return lambda x, output_size: maxima(x, _adaptive_windows(x, each(output_size, dims)))


def _adaptive_windows(x: Any, output_size: Any) -> list[Windows]:
    windows = []
    for n, outputs in zip(x.shape[x.dim() - len(output_size) :], output_size, strict=True):
        o = torch.arange(outputs, device=x.device)
        start = o * n // outputs
        last = ((o + 1) * n + outputs - 1) // outputs - start - 1
        windows.append(Windows(start, last * 0, last, n // outputs + 2))
    return windows


def _fractional(dims: int) -> Callable[..., Any]:
    def pool(x: Any, kernel: Any, output_size: Any, samples: Any) -> Any:
        if x.dim() == dims + 1:
            samples = samples[0]
        # Graham, "Fractional max-pooling" (2014): the last window ends where x does. The samples of two dimensions
        # are (width, height), those of three (depth, height, width).
        order = [1, 0] if dims == 2 else [0, 1, 2]
        windows = []
        for d, k, outputs in zip(range(dims), each(kernel, dims), each(output_size, dims), strict=True):
            n = x.shape[d - dims]
            sample = samples[..., order[d], None].to(compute_dtype(samples.dtype))
            o = torch.arange(outputs, device=x.device)
            step = torch.ones((), dtype=sample.dtype, device=x.device) * (n - k) / max(outputs - 1, 1)
            inner = ((o + sample) * step).to(torch.int64) - (sample * step).to(torch.int64)
            start = torch.where(o == outputs - 1, n - k, inner)
            windows.append(Windows(start, start * 0, start * 0 + (k - 1), k))
        return maxima(x, windows)

    return pool


TABLE: dict[Any, Callable[..., Any]] = {
    aten.max_pool3d_with_indices.default: _max_pool3d,
    aten.max_pool3d_with_indices_backward.default: _max_pool3d_backward,
    aten.adaptive_max_pool2d.default: _adaptive_max(2),
    aten.adaptive_max_pool3d.default: _adaptive_max(3),
    aten.adaptive_max_pool2d_backward.default: lambda gradient, x, indices: spread(gradient, x, indices, 2),
    aten.adaptive_max_pool3d_backward.default: lambda gradient, x, indices: spread(gradient, x, indices, 3),
    aten.fractional_max_pool2d.default: _fractional(2),
    aten.fractional_max_pool3d.default: _fractional(3),
    aten.fractional_max_pool2d_backward.default: (
        lambda gradient, x, kernel, size, indices: spread(gradient, x, indices, 2)
    ),
    aten.fractional_max_pool3d_backward.default: (
        lambda gradient, x, kernel, size, indices: spread(gradient, x, indices, 3)
    ),
}
