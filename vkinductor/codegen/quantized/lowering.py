"""Lowerings of vkinductor.dequantize and vkinductor.quantized_linear."""

from __future__ import annotations

import functools
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv, sympy_product
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from vkinductor.runtime import context

from .. import gemm
from ..compat import size_hint
from ..fused import choose
from ..template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out
from . import gemv, lanes, staged
from .chunks import chunk
from .formats import UNIT, Packing, packing
from .operands import address, flat, row_of_table, rows_in_memory, rows_of_blocks
from .problem import Problem

aten = torch.ops.aten

# Invocations a workgroup of the kernel that only dequantises.
_THREADS = 64
# 32-bit words of a store, by kind of device: a CPU driver stores the parts of a vector one after the other.
_WORDS = {"cpu": 2}
_PAIRS = {torch.float16: "vk_f32_to_f16_pair", torch.bfloat16: "vk_f32_to_bf16_pair", torch.float32: ""}


def _plan(kernel: VulkanTemplateKernel, entry: Packing) -> tuple[str, dict[str, Any], Any]:
    rows, columns = kernel.node.get_size()
    dtype = kernel.node.get_dtype()
    name = kernel.args.output(kernel.node.get_name())
    kernel.written.add(name)
    place, stride = address(kernel, 0)
    values = {
        "threads": _THREADS,
        "rows": kernel.size(rows),
        "k": kernel.size(columns),
        "dequantize": entry.dequantize,
        "address": place,
        "stride": stride,
        "row": "row",
        "destination": name,
        "nbytes": dtype.itemsize,
        "pair": _PAIRS[dtype],
        "words": _WORDS.get(kernel.device_info.kind, 4),
        "defines": lanes.words_anywhere(kernel.device_info),
    }
    if len(kernel.inputs) > 1:
        table, tokens = kernel.inputs
        values["row"] = row_of_table(kernel.operand(1), kernel.size(tokens.get_layout().stride[0]),
                                     kernel.size(table.get_size()[0]))("row")  # fmt: skip
    return "dequantize.glsl.jinja", values, ceildiv(rows * FloorDiv(columns, UNIT), _THREADS)


def dequantize(packed: TensorBox, format: int, dtype: torch.dtype) -> TensorBox:
    """vkinductor.dequantize: packed rows [..., bytes] as [..., weights] of a floating dtype."""
    entry = packing(format)
    *outer, nbytes = packed.get_size()
    columns = FloorDiv(nbytes, entry.format.nbytes) * entry.format.elements
    size, made = [*outer, columns], dtype if dtype in _PAIRS else torch.float32
    if V.graph.sizevars.statically_known_equals(sympy_product(size), 0):
        return lowering.full(size, 0, dtype=dtype, device=packed.get_device())
    rows = rows_of_blocks(flat(packed), entry)
    whole = [rows.get_size()[0], columns]
    layout = FixedLayout(packed.get_device_or_error(), made, whole, FlexibleLayout.contiguous_strides(whole))
    plan = functools.partial(_plan, entry=entry)
    node = TensorBox.create(VulkanTemplateBuffer(layout, [rows], plan, name="dequantize", fuses=False))
    return lowering.to_dtype(_shaped(node, size), dtype)


def dequantize_rows(packed: TensorBox, tokens: TensorBox, format: int, dtype: torch.dtype) -> TensorBox:
    """vkinductor.dequantize_rows: of a table [V, bytes] the rows that tokens [m] name, as [m, weights]."""
    entry, rows = packing(format), tokens.get_size()[0]
    columns = FloorDiv(packed.get_size()[1], entry.format.nbytes) * entry.format.elements
    if V.graph.sizevars.statically_known_equals(rows * columns, 0):
        return lowering.full([rows, columns], 0, dtype=dtype, device=packed.get_device())
    made = dtype if dtype in _PAIRS else torch.float32
    strides = FlexibleLayout.contiguous_strides([rows, columns])
    layout = FixedLayout(packed.get_device_or_error(), made, [rows, columns], strides)
    inputs, plan = [rows_of_blocks(packed, entry), laid_out(tokens)], functools.partial(_plan, entry=entry)
    node = TensorBox.create(VulkanTemplateBuffer(layout, inputs, plan, name="dequantize_rows", fuses=False))
    return lowering.to_dtype(node, dtype)


def _shaped(x: TensorBox, size: list[Any]) -> TensorBox:
    return x if len(size) == 2 else lowering.lowerings[aten.view.default](x, size)


def _few_rows(x: Any, weights: Any, entry: Packing, dtype: torch.dtype) -> TensorBox:
    """x [m, K] times rows of blocks, both in memory, in ``dtype``."""
    info, k = context.get().info, V.graph.sizevars.simplify(x.get_size()[1])
    pitches = [V.graph.sizevars.simplify(i.get_layout().stride[0]) for i in (x, weights)]
    fixed = (k, weights.get_size()[0], *pitches)
    known = all(isinstance(size, (int, sympy.Integer)) for size in fixed)
    if not known or x.get_layout().stride[1] != 1:
        return gemv.product(info, x, weights, entry, dtype, None)
    m = x.get_size()[0]
    problem = Problem.alone(entry.format.number, *map(int, fixed))
    layers = choose.Layers(
        problem, x.get_dtype(), size_hint(m), isinstance(m, (int, sympy.Integer)),
        problem.k // chunk(entry).weights, True, staged.wants_bytes(),
    )  # fmt: skip
    tile = choose.chosen(info, layers)
    if not isinstance(tile, staged.StagedTile):
        return gemv.product(info, x, weights, entry, dtype, tile)
    plan = staged.plan_of(info, [x, weights], problem, layers.rows_staged, tile)
    size = [m, weights.get_size()[0]]
    layout = FixedLayout(x.get_device(), dtype, size, FlexibleLayout.contiguous_strides(size))
    return TensorBox.create(VulkanTemplateBuffer(layout, [x, weights], plan, name="quantized_linear"))


def quantized_linear(x: TensorBox, packed: TensorBox, format: int, bias: TensorBox | None = None) -> TensorBox:
    """vkinductor.quantized_linear: x [..., K] times packed weights [N, bytes of K], and a bias [N].

    Few rows meet the weights as they are packed. For more of them these become a matrix of x's dtype first.
    """
    entry = packing(format)
    dtype, size = x.get_dtype(), [*x.get_size()[:-1], packed.get_size()[0]]
    rows = flat(x) if dtype in _PAIRS else lowering.to_dtype(flat(x), torch.float32)
    known = V.graph.sizevars.statically_known_equals
    empty = any(known(s, 0) for s in (*rows.get_size(), *packed.get_size()))
    # A sum that is rounded once, bias and all.
    wide = torch.float32 if bias is not None else rows.get_dtype()
    if empty:
        product = lowering.full([rows.get_size()[0], size[-1]], 0, dtype=wide, device=x.get_device())
    elif gemv.serves(rows):
        product = _few_rows(rows_in_memory(rows), rows_of_blocks(packed, entry), entry, wide)
    else:
        weights = dequantize(packed, format, rows.get_dtype())
        transposed = lowering.lowerings[aten.permute.default](weights, [1, 0])
        product = lowering.to_dtype(gemm.mm(rows, transposed), wide)
    if bias is not None:
        product = lowering.lowerings[aten.add.Tensor](product, lowering.to_dtype(bias, wide))
    return _shaped(lowering.to_dtype(product, dtype), size)
