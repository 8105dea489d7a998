"""Convolution lowerings: the operator, its transposed form and their gradients as problems of ``implicit_gemm``.

One with the gradient of the other: the transposed convolution is the gradient of a convolution with respect to its
input. A convolution whose patches do not overlap (stride = kernel size: the patch embedding of vision transformers) is
a matrix product over reshaped operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FlexibleLayout, TensorBox
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from vkinductor.runtime import context

from . import convolution_products, depthwise
from .compat import size_hint
from .convolution_tiles import Window
from .implicit_gemm import Axis, Problem, output_size, parts, product
from .template_kernel import laid_out

aten = torch.ops.aten
prims = torch.ops.prims


def _is_patchwise(x: TensorBox, weight: TensorBox, geometry: _Geometry, transposed: bool) -> bool:
    kernel = weight.get_size()[2:]
    known = V.graph.sizevars.statically_known_equals
    return (
        not transposed
        and known(geometry.groups, 1)
        and all(known(k, s) for s, k in zip(geometry.stride, kernel, strict=True))
        and not all(known(k, 1) for k in kernel)
        and not any(geometry.padding)
        and all(d == 1 for d in geometry.dilation)
        and not _known_zero([*x.get_size(), *weight.get_size()])
        and all(known(size % k, 0) for size, k in zip(x.get_size()[2:], kernel, strict=True))
    )


def _patch_product(x: TensorBox, weight: TensorBox, bias: TensorBox | None) -> TensorBox:
    """[B, C, D1*k1, ...] and [O, C, k1, ...] -> [B, O, D1, ...], as one matrix product over B*D rows."""
    ops = lowering.lowerings
    batch, channels, *space = x.get_size()
    out_channels, _, *kernel = weight.get_size()
    counts = [size // k for size, k in zip(space, kernel, strict=True)]
    dims = len(kernel)
    split = [batch, channels]
    for count, k in zip(counts, kernel, strict=True):
        split += [count, k]
    patches = ops[aten.view](x, split)
    order = [0, *(2 + 2 * i for i in range(dims)), 1, *(3 + 2 * i for i in range(dims))]
    patches = ops[aten.permute](patches, order)
    rows, depth = batch, channels
    for count, k in zip(counts, kernel, strict=True):
        rows, depth = rows * count, depth * k
    columns = ops[aten.permute](ops[aten.view](weight, [out_channels, depth]), [1, 0])
    flat = ops[aten.reshape](patches, [rows, depth])
    product = ops[aten.mm](flat, columns)
    if bias is not None:
        product = ops[aten.add](product, bias)
    result = ops[aten.view](product, [batch, *counts, out_channels])
    return ops[aten.permute](result, [0, dims + 1, *range(1, dims + 1)])


def _fixed(values: Any) -> tuple[int, ...]:
    """Numbers that the program is compiled for."""
    return tuple(int(V.graph.sizevars.guard_int(v)) for v in values)


@dataclass(frozen=True)
class _Geometry:
    """What the three products of one convolution share: y[o] takes x[o * stride - padding + k * dilation]."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: Any

    @classmethod
    def of(cls, weight: Sequence[Any], stride: Any, padding: Any, dilation: Any, groups: Any) -> _Geometry:
        """From the weight's size and the operator's arguments, whose lists may have one element for all dimensions.

        Programs are for fixed kernel sizes, strides, paddings and dilations; groups and all other sizes may vary.
        """
        taps = _fixed(weight[2:])

        def each(values: Any) -> tuple[int, ...]:
            values = _fixed(values)
            return values * len(taps) if len(values) == 1 else values

        return cls(each(stride), each(padding), each(dilation), sympy.sympify(groups))


def _strides(operand: Any) -> list[Any]:
    """Strides, zero where there is one element: Dynamo gives those symbols that no wrapper defines."""
    layout = operand.get_layout()
    one = V.graph.sizevars.statically_known_equals
    return [0 if one(n, 1) else s for n, s in zip(layout.size, layout.stride, strict=True)]


def _forward(x: Any, weight: Any, geometry: _Geometry, dtype: Any = None) -> TensorBox:
    """[B, C, D...], [O, C / groups, K...] -> [B, O, E...]: m = output channel, n = (b, e), k = (channel, tap)."""
    batch, _, *space = x.get_size()
    outputs, channels, *taps = weight.get_size()
    g = geometry
    rows = zip(space, taps, g.stride, g.padding, g.dilation, strict=True)
    axes, sizes = [], []
    for size, tap, stride, padding, dilation in rows:
        sizes.append(output_size(size, tap, stride, padding, dilation))
        axes.append(Axis(size, alpha=stride, beta=dilation, gamma=-padding, checked=padding != 0))
    result = [batch, outputs, *sizes]
    xs, ws, ys = _strides(x), _strides(weight), FlexibleLayout.contiguous_strides(result)
    per_group = FloorDiv(outputs, g.groups)
    problem = Problem(
        name="convolution",
        groups=g.groups,
        m=per_group,
        n=(batch, *sizes),
        k=(channels, *taps),
        axes=tuple(axes),
        a=(per_group * ws[0], *ws),
        x=(channels * xs[1], xs[0], xs[1], *xs[2:]),
        out=(sympy_product(result), per_group * ys[1], ys[1], ys[0], *ys[2:]),
    )
    return product(problem, weight, x, result, dtype or x.get_dtype())


def _spread(y: Any, weight: Any, geometry: _Geometry, space: Sequence[Any], dtype: Any = None) -> TensorBox:
    """[B, O, E...], [O, C / groups, K...] -> [B, C, D...], the gradient of `_forward` with respect to x.

    m = channel of x, n = (b, d), k = (output channel, tap): x[d] takes y[(d + padding - k * dilation) / stride].
    """
    batch, outputs, *sizes = y.get_size()
    _, channels, *taps = weight.get_size()
    g = geometry
    axes = [
        Axis(size, alpha=1, beta=-dilation, gamma=padding, stride=stride)
        for size, stride, padding, dilation in zip(sizes, g.stride, g.padding, g.dilation, strict=True)
    ]
    result = [batch, channels * g.groups, *space]
    ys, ws, xs = _strides(y), _strides(weight), FlexibleLayout.contiguous_strides(result)
    per_group = FloorDiv(outputs, g.groups)
    problem = Problem(
        name="convolution_transposed",
        groups=g.groups,
        m=channels,
        n=(batch, *space),
        k=(per_group, *taps),
        axes=tuple(axes),
        a=(per_group * ws[0], ws[1], ws[0], *ws[2:]),
        x=(per_group * ys[1], ys[0], ys[1], *ys[2:]),
        out=(sympy_product(result), channels * xs[1], xs[1], xs[0], *xs[2:]),
    )
    return product(problem, weight, y, result, dtype or y.get_dtype())


def _weight_gradient(y: Any, x: Any, weight_size: Sequence[Any], geometry: _Geometry) -> TensorBox:
    """[B, O, E...], [B, C, D...] -> [O, C / groups, K...]: m = output channel, n = (channel, tap), k = (b, e)."""
    batch, _, *sizes = y.get_size()
    outputs, channels, *taps = weight_size
    g = geometry
    axes = [
        Axis(size, alpha=dilation, beta=stride, gamma=-padding, checked=padding != 0)
        for size, stride, padding, dilation in zip(x.get_size()[2:], g.stride, g.padding, g.dilation, strict=True)
    ]
    terms = sympy_product([batch, *sizes])
    shared = size_hint(batch * sizes[0])  # what the templates can cut
    splits = min(shared, parts(context.get().info, size_hint(sympy_product(weight_size)), size_hint(terms)))
    ys, xs, ws = _strides(y), _strides(x), FlexibleLayout.contiguous_strides([*weight_size])
    per_group = FloorDiv(outputs, g.groups)
    problem = Problem(
        name="convolution_weight",
        groups=g.groups,
        m=per_group,
        n=(channels, *taps),
        k=(batch, *sizes),
        axes=tuple(axes),
        a=(per_group * ys[1], ys[1], ys[0], *ys[2:]),
        x=(channels * xs[1], xs[1], xs[0], *xs[2:]),
        out=(sympy_product(weight_size), per_group * ws[0], *ws),
        splits=splits,
    )
    return product(problem, y, x, weight_size, y.get_dtype())


def _known_zero(sizes: Sequence[Any]) -> bool:
    return any(V.graph.sizevars.statically_known_equals(s, 0) for s in sizes)


def _zeros(size: Sequence[Any], like: TensorBox) -> TensorBox:
    return lowering.full([*size], 0, dtype=like.get_dtype(), device=like.get_device())


def _depthwise(
    x: TensorBox, weight: TensorBox, geometry: _Geometry, sizes: Sequence[Any], dtype: Any
) -> TensorBox | None:
    known = V.graph.sizevars.statically_known_equals
    each = (x.get_size()[1], weight.get_size()[0])
    if known(geometry.groups, 1) or not all(known(geometry.groups, n) for n in each):
        return None
    taps = _fixed(weight.get_size()[2:])
    window = Window(taps, geometry.stride, geometry.padding, geometry.dilation)
    return depthwise.depthwise(x, weight, window, sizes, dtype or x.get_dtype())


def convolution(
    x: TensorBox,
    weight: TensorBox,
    bias: TensorBox | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
) -> TensorBox:
    """aten.convolution over [B, C, ...] and [O, C / groups, ...]; transposed over [C, O / groups, ...].

    Every dtype of types.py; half precisions accumulate in float32. The result is contiguous, or has its
    channels last where it is a matrix product; as the result of a graph it gets the strides of ``device.fakes``.
    """
    dims = len(weight.get_size()) - 2
    geometry = _Geometry.of(weight.get_size(), stride, padding, dilation, groups)
    if _is_patchwise(x, weight, geometry, transposed):
        return _patch_product(x, weight, bias)
    batch, _, *space = x.get_size()
    taps = weight.get_size()[2:]
    rows_ = zip(space, taps, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    positions = [output_size(*row) for row in rows_]
    empty = _known_zero([*x.get_size(), *weight.get_size()])
    if not transposed and not empty and V.graph.sizevars.statically_known_equals(geometry.groups, 1):
        window = Window(_fixed(taps), geometry.stride, geometry.padding, geometry.dilation)
        made = convolution_products.product(x, weight, bias, window, positions)
        if made is not None:
            return made
    # Rounded once, with the bias, also where that does not become a part of the kernel.
    unrounded = torch.float32 if bias is not None and x.get_dtype() in (torch.float16, torch.bfloat16) else None
    if transposed:
        more = _fixed(output_padding)
        more = more * dims if len(more) == 1 else more
        rows = zip(space, taps, geometry.stride, geometry.padding, geometry.dilation, more, strict=True)
        sizes = [(size - 1) * s - 2 * p + d * (tap - 1) + extra + 1 for size, tap, s, p, d, extra in rows]
        if empty:
            result = _zeros([batch, weight.get_size()[1] * geometry.groups, *sizes], x)
        else:
            result = _spread(laid_out(x), laid_out(weight), geometry, sizes, unrounded)
    elif empty:
        result = _zeros([batch, weight.get_size()[0], *positions], x)
    else:
        made = _depthwise(x, weight, geometry, positions, unrounded)
        result = _forward(laid_out(x), laid_out(weight), geometry, unrounded) if made is None else made
    if bias is None:
        return result
    ops = lowering.lowerings
    result = ops[aten.add](result, ops[aten.view](bias, [bias.get_size()[0], *[1] * dims]))
    return ops[prims.convert_element_type](result, x.get_dtype())


def convolution_backward(
    gradient: TensorBox,
    x: TensorBox,
    weight: TensorBox,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    output_mask: Sequence[bool],
) -> tuple[TensorBox | None, ...]:
    """aten.convolution_backward: the gradients of x, weight and bias that ``output_mask`` asks for, else None."""
    dims = len(weight.get_size()) - 2
    geometry = _Geometry.of(weight.get_size(), stride, padding, dilation, groups)
    for_x = for_weight = for_bias = None
    empty = _known_zero([*x.get_size(), *weight.get_size(), *gradient.get_size()])
    if output_mask[0]:
        if empty:
            for_x = _zeros(x.get_size(), x)
        elif transposed:
            for_x = _forward(laid_out(gradient), laid_out(weight), geometry)
        else:
            for_x = _spread(laid_out(gradient), laid_out(weight), geometry, x.get_size()[2:])
    if output_mask[1]:
        if empty:
            for_weight = _zeros(weight.get_size(), weight)
        elif transposed:
            for_weight = _weight_gradient(laid_out(x), laid_out(gradient), weight.get_size(), geometry)
        else:
            for_weight = _weight_gradient(laid_out(gradient), laid_out(x), weight.get_size(), geometry)
    if output_mask[2]:
        for_bias = lowering.lowerings[aten.sum](gradient, [0, *range(2, dims + 2)])
    return for_x, for_weight, for_bias
