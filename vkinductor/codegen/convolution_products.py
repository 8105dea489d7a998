"""Convolutions as matrix products on the ladder of ``gemm``, whose result has its channels last in memory.

    y[(b, e), o] = sum over (tap, c) of x[b, e * stride - padding + tap * dilation, c] * w[(tap, c), o]

A kernel of one element with stride 1 is a product of the operands as they lie. The others gather: a tile of rows of x
is brought 8 channels at a time from where each position and tap say (matmul_gather.glsl.jinja), nothing is unfolded in
memory. x and the weight are read with channels last: what lies otherwise, or has channels that are no multiple of 8, is
copied once, which costs its bytes; what follows then finds channels last.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from vkinductor.runtime import context

from .alignment import divides, vector_width
from .compat import size_hint
from .convolution_tiles import Problem, Window, choose_tile
from .gemm import mm, stream
from .gemm import problem as gemm
from .gemm.cooperative import SubgroupTile
from .gemm.lower import block_operand, computed
from .heuristics import convolution_products
from .template_kernel import VulkanTemplateKernel, laid_out, realized
from .types import glsl_type, literal

aten = torch.ops.aten


def product(
    x: TensorBox, weight: TensorBox, bias: TensorBox | None, window: Window, sizes: Sequence[Any]
) -> TensorBox | None:
    """[B, C, D...] and [O, C, K...] with one group -> [B, O, *sizes], as a matrix product; None where the device or the
    sizes have no such kernel."""
    if not convolution_products(context.get().info) or not x.get_dtype().is_floating_point:
        return None
    once = all(t == 1 for t in window.taps) and not any(window.padding)
    if once and all(s == 1 for s in window.stride):
        return _pointwise(x, weight, bias)
    return _gathered(x, weight, bias, window, sizes)


def settled(x: Any) -> Any:
    """A buffer or a view of one; a layout that is still open becomes channels last: whoever writes it does so for free,
    and a network that holds to one layout copies nothing."""
    operand = realized(x)
    if isinstance(operand.get_layout(), ir.FlexibleLayout):
        dims = len(operand.get_size())
        operand.freeze_layout_with_stride_order([dims - 1, 0, *range(dims - 2, 0, -1)])
    return laid_out(operand)


def _view(operand: Any, size: Sequence[Any], stride: Sequence[Any]) -> Any:
    """The memory of a laid out ``operand`` with another size and stride."""
    storage, layout = ir.as_storage_and_layout(operand, freeze=False)
    fixed = FixedLayout(layout.device, layout.dtype, [*size], [*stride], layout.offset)
    return TensorBox(ir.ReinterpretView(data=storage, layout=fixed))


def _flat(sizes: Sequence[Any], strides: Sequence[Any]) -> Any | None:
    """The stride of the dimensions of ``sizes`` as one; None where they do not make one."""
    known = V.graph.sizevars.statically_known_equals
    digits = [(n, s) for n, s in zip(sizes, strides, strict=True) if not known(n, 1)]
    if not digits:
        return sympy.S.One
    for (_, outer), (n, inner) in itertools.pairwise(digits):
        if not known(outer, n * inner):
            return None
    return digits[-1][1]


def _pointwise(x: TensorBox, weight: TensorBox, bias: TensorBox | None) -> TensorBox | None:
    """A kernel of one element: rows of positions times the weight, or with channels first the weight times columns."""
    ops = lowering.lowerings
    x, weight = settled(x), settled(weight)
    batch, channels, *space = x.get_size()
    outputs = weight.get_size()[0]
    strides, ws = x.get_layout().stride, weight.get_layout().stride
    if strides[1] == 1 and not V.graph.sizevars.statically_known_equals(channels, 1):
        rows = _flat([batch, *space], [strides[0], *strides[2:]])
        if rows is None:
            return None
        flat = _view(x, [sympy_product([batch, *space]), channels], [rows, 1])
        result = mm(flat, _view(weight, [channels, outputs], [ws[1], ws[0]]))
        return _placed(result, bias, batch, space, outputs)
    columns = _flat(space, strides[2:])
    if columns is None:
        return None
    images = _view(x, [batch, channels, sympy_product(space)], [strides[0], strides[1], columns])
    result = mm(_view(weight, [batch, outputs, channels], [0, ws[0], ws[1]]), images)
    if bias is not None:
        result = ops[aten.add](result, ops[aten.view](bias, [outputs, 1]))
    return ops[aten.view](result, [batch, outputs, *space])


def _placed(product: TensorBox, bias: TensorBox | None, batch: Any, space: Sequence[Any], outputs: Any) -> TensorBox:
    """[B * E, O] -> [B, O, E...], with the bias."""
    ops = lowering.lowerings
    if bias is not None:
        product = ops[aten.add](product, bias)
    result = ops[aten.view](product, [batch, *space, outputs])
    dims = len(space)
    return ops[aten.permute](result, [0, dims + 1, *range(1, dims + 1)])


def _gathered(
    x: TensorBox, weight: TensorBox, bias: TensorBox | None, window: Window, sizes: Sequence[Any]
) -> TensorBox | None:
    batch, channels = x.get_size()[:2]
    outputs = weight.get_size()[0]
    if not isinstance(channels, (int, sympy.Integer)):
        return None
    padded = -(-int(channels) // 8) * 8
    terms = padded * prod(window.taps)
    rows = sympy_product([batch, *sizes])
    whole = all(isinstance(V.graph.sizevars.simplify(s), (int, sympy.Integer)) for s in (rows, outputs))
    space = tuple(size_hint(n) for n in x.get_size()[2:])
    problem = Problem(size_hint(batch), padded, size_hint(outputs), space, window, x.get_dtype(), whole)
    tile = choose_tile(context.get().info, problem)
    if tile is None:
        return None
    left, right = _channels_last(x, padded), _channels_last(weight, padded, whole=True)
    columns = _view(right, [terms, outputs], [1, terms])
    make = functools.partial(_plan, tile=tile, problem=problem.product, window=window, sizes=tuple(sizes))
    uses = sum(x.get_size(), sympy.S.Zero) + sum(sizes, sympy.S.Zero)
    result = computed([left, columns], [rows, outputs], left.get_dtype(), tile, make, name="convolution", uses=uses)
    return _placed(result, bias, batch, sizes, outputs)


def _channels_last(x: TensorBox, channels: int, whole: bool = False) -> Any:
    """[B, C, D...] -> [B, D..., channels] with aligned rows of ``channels`` that begin with those of x; ``whole``: and
    without gaps. A view where x lies like that."""
    x = settled(x)
    order = [0, *range(2, len(x.get_size())), 1]
    size, stride = ([values[d] for d in order] for values in (x.get_size(), x.get_layout().stride))
    one = V.graph.sizevars.statically_known_equals
    # Of one element any stride is right; zero is a multiple of every width.
    stride = [0 if one(n, 1) and d < len(size) - 1 else s for d, (n, s) in enumerate(zip(size, stride, strict=True))]
    view = _view(x, size, stride)
    if V.graph.sizevars.statically_known_equals(size[-1], channels):
        if vector_width(view, -1) == 8 and (not whole or _flat(size[:-1], stride[:-1]) == channels):
            return view
    else:
        view = lowering.lowerings[aten.constant_pad_nd](view, [0, channels - size[-1]], 0.0)
    return laid_out(ir.ExternKernel.copy_input(view))


def _plan(
    kernel: VulkanTemplateKernel, tile: SubgroupTile, problem: gemm.Problem, window: Window, sizes: tuple[Any, ...]
) -> tuple[str, dict[str, Any], Any]:
    x, weight = kernel.inputs[:2]
    batch, *space, channels = x.get_size()
    rows, (terms, outputs) = sympy_product([batch, *sizes]), weight.get_size()
    one = V.graph.sizevars.statically_known_equals
    strides = [0 if one(n, 1) else s for n, s in zip(x.get_size(), x.get_layout().stride, strict=True)]
    size = kernel.size
    gathered = {
        "computed": "",
        "along": "k",
        "other": "m",
        "address": kernel.address(0),
        "channels": int(channels),
        "batch_stride": size(strides[0]),
        "index": kernel.index_dtype,
        # A bit a tap; a step of the sum has one tap only where it has no other's channels.
        "masked": prod(window.taps) <= 32,
        "whole": int(channels) % tile.bk == 0,
        "axes": [
            {
                "size": size(n), "out": size(out), "space": size(s), "taps": window.taps[d],
                "inner_taps": prod(window.taps[d + 1 :]), "step": window.stride[d], "padding": window.padding[d],
                "dilation": window.dilation[d],
            }
            for d, (n, out, s) in enumerate(zip(space, sizes, strides[1:-1], strict=True))
        ],
    }  # fmt: skip
    values = {
        "m": size(rows),
        "n": size(outputs),
        "k": size(terms),
        "batch": "1",
        "accumulator": glsl_type(torch.float32).register,
        "zero": literal(0, torch.float32),
        "n_width": next(width for width in (8, 4, 2, 1) if divides(width, outputs)),
        **tile.values(kernel.device_info, problem),
        "prologues": (),
        "a": gathered,
        "b": block_operand(kernel, 1, "b", tile, problem),
        **(stream.values(kernel, tile.grain, terms, tile.streams) if tile.streams else {}),
    }
    return tile.template, values, tile.groups(1, rows, outputs)
