"""Convolution lowerings.

A convolution whose patches do not overlap (stride = kernel size: the patch embedding of vision transformers) is a
matrix product over reshaped operands. The others run as the operator itself, on contiguous operands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.ir import TensorBox
from torch._inductor.virtualized import V

aten = torch.ops.aten


def _is_patchwise(
    x: TensorBox, weight: TensorBox, stride: Any, padding: Any, dilation: Any, transposed: bool, groups: int
) -> bool:
    kernel = weight.get_size()[2:]
    known = V.graph.sizevars.statically_known_equals
    return (
        not transposed
        and groups == 1
        and len(x.get_size()) == len(kernel) + 2
        and len(stride) == len(kernel)
        and all(known(s, k) for s, k in zip(stride, kernel, strict=True))
        and all(known(p, 0) for p in padding)
        and all(known(d, 1) for d in dilation)
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


def convolution(
    x: TensorBox,
    weight: TensorBox,
    bias: TensorBox | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> TensorBox:
    """aten.convolution over [B, C, ...] and [O, C / groups, ...]."""
    if _is_patchwise(x, weight, stride, padding, dilation, transposed, groups):
        return _patch_product(x, weight, bias)
    operands = [None if t is None else ir.ExternKernel.require_contiguous(t) for t in (x, weight, bias)]
    call = lowering.fallback_handler(aten.convolution.default, add_to_fallback_set=False)
    return call(*operands, stride, padding, dilation, transposed, output_padding, groups)
