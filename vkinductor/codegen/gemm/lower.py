"""Lowerings of matrix products onto the templates.

mm, bmm, addmm and baddbmm become one template node over [batch, M, N] with strided operands (nn.Linear's
transposed weight is a stride, not a copy); bias, scaling and whatever follows fuse as its epilogue. Other
devices keep Inductor's own lowerings.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, Pointwise, TensorBox
from torch._inductor.utils import upcast_compute_type
from torch._inductor.virtualized import V, ops

from vkinductor.runtime import context

from .. import loop_limit
from ..alignment import divides
from ..template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out
from ..types import glsl_type, literal
from . import skinny
from .choose import best, choose
from .mixed import converted_weights
from .problem import MOST_ROWS, Problem, describe
from .tiles import BlockTile, DirectTile, Tile

aten = torch.ops.aten


def _strides(operand: Any) -> list[Any]:
    """Strides of (batch, rows, columns)."""
    strides = list(operand.get_layout().stride)
    return strides if len(strides) == 3 else [sympy.S.Zero, *strides]


def block_operand(kernel: VulkanTemplateKernel, position: int, tile: BlockTile, problem: Problem) -> dict[str, Any]:
    """What a template that brings whole tiles knows of an operand: the dimension that tiles lie ``along`` in memory and
    the ``other`` one that is not k, and whether every tile is ``full``, so that nothing needs a check."""
    is_a = position == 0
    along, width = (problem.a_contiguous, problem.a_width) if is_a else (problem.b_contiguous, problem.b_width)
    batch, rows, columns = _strides(kernel.inputs[position])
    of_k, of_other = (columns, rows) if is_a else (rows, columns)
    k_inner = along in ("k", "")
    sizes = kernel.inputs[position].get_size()[-2:]
    (other, k), block = (sizes, tile.bm) if is_a else (reversed(sizes), tile.bn)
    return {
        "axes": (),
        "along": "k" if k_inner else along,
        "other": "m" if is_a else "n",
        "width": width,
        "address": kernel.address(position),
        "batch_stride": kernel.size(batch),
        "inner_stride": kernel.size(of_k if k_inner else of_other),
        "outer_stride": kernel.size(of_other if k_inner else of_k),
        "outer_full": divides(block, other),
        "k_full": divides(tile.bk, k),
    }


def plan(kernel: VulkanTemplateKernel, tile: Tile, problem: Problem) -> tuple[str, dict[str, Any], Any]:
    """The template of ``tile``, its context, and the number of workgroups."""
    if isinstance(tile, skinny.SkinnyTile):
        return skinny.plan(kernel, tile, problem)
    a, b = kernel.inputs
    batch = a.get_size()[0] if len(a.get_size()) == 3 else sympy.S.One
    m, k, n = a.get_size()[-2], a.get_size()[-1], b.get_size()[-1]
    dtype = upcast_compute_type(kernel.node.get_dtype())
    values: dict[str, Any] = {
        "m": kernel.size(m),
        "n": kernel.size(n),
        "k": kernel.size(k),
        "batch": kernel.size(batch),
        "accumulator": glsl_type(dtype).register,
        "zero": literal(0, dtype),
        "wrap": glsl_type(dtype).wrap,
        "n_width": next(width for width in (8, 4, 2, 1) if divides(width, n)),
        **tile.values(kernel.device_info, problem),
    }
    if isinstance(tile, BlockTile):
        values["a"], values["b"] = (block_operand(kernel, i, tile, problem) for i in range(2))
    else:
        values["a_strides"], values["b_strides"] = ([kernel.size(s) for s in _strides(x)] for x in (a, b))
        values["a_k_contiguous"], values["b_k_contiguous"] = problem.a_contiguous == "k", problem.b_contiguous == "k"
        values["load_a"], values["load_b"] = kernel.operand(0), kernel.operand(1)
    if isinstance(tile, DirectTile):
        unroll = loop_limit.unrolled(kernel.device_info, k, tile.lanes, 1, what="a matrix product")
        values["unroll"] = unroll
    return tile.template, values, tile.groups(batch, m, n)


def _product(a: TensorBox, b: TensorBox, dtype: torch.dtype | None = None) -> TensorBox:
    """The template node of a @ b over [M, N] or [batch, M, N], in a's dtype if none is given."""
    left, right = laid_out(a), laid_out(b)
    size = [*left.get_size()[:-1], right.get_size()[-1]]
    if len(size) == 3:
        V.graph.sizevars.check_equals(left.get_size()[0], right.get_size()[0])
    V.graph.sizevars.check_equals(left.get_size()[-1], right.get_size()[-2])
    problem = describe(left, right)
    tile = choose(context.get().info, problem)
    make = functools.partial(plan, tile=tile, problem=problem)
    return computed(left, right, size, tile, make, dtype=dtype)


def computed(
    left: Any,
    right: Any,
    size: list[Any],
    tile: Tile,
    make: Any,
    name: str = "matmul",
    uses: Any = sympy.S.Zero,
    dtype: torch.dtype | None = None,
) -> TensorBox:
    """The template node of plan ``make`` over laid out operands: ``size`` in left's dtype if ``dtype`` is none; with
    splits, their sum."""
    dtype = dtype or left.get_dtype()
    stored, whole = dtype, size
    if tile.splits > 1:
        stored, whole = upcast_sum(dtype), [sympy.Integer(tile.splits), *size]
    output = FixedLayout(left.get_device(), stored, whole, FlexibleLayout.contiguous_strides(whole))
    made = TensorBox.create(
        VulkanTemplateBuffer(output, [left, right], make, name=name, fuses=tile.splits == 1, uses=uses)
    )
    return made if tile.splits == 1 else _sum(made, tile.splits, size, dtype)


def upcast_sum(dtype: torch.dtype) -> torch.dtype:
    """What a part of a sum is kept in until it is added to the others."""
    return torch.float32 if dtype.is_floating_point else torch.int32


def _sum(parts: TensorBox, count: int, size: list[Any], dtype: torch.dtype) -> TensorBox:
    """parts[0] + parts[1] + ... in that order, rounded to ``dtype``: pointwise, so that all that follows fuses."""
    parts.realize()
    load = parts.make_loader()

    def add(index: Any) -> Any:
        total = load([sympy.S.Zero, *index])
        for part in range(1, count):
            total = ops.add(total, load([sympy.Integer(part), *index]))
        return ops.to_dtype(total, dtype)

    return Pointwise.create(device=parts.get_device(), dtype=dtype, inner_fn=add, ranges=size)


def _empty(a: TensorBox, b: TensorBox) -> bool:
    """Whether a dimension is known to be zero (then Inductor's own lowering gives zeros)."""
    return any(V.graph.sizevars.statically_known_equals(s, 0) for s in [*a.get_size(), *b.get_size()])


def _zeros(a: TensorBox, b: TensorBox, dtype: torch.dtype | None = None) -> TensorBox:
    size = [*a.get_size()[:-1], b.get_size()[-1]]
    return lowering.full(size, 0, dtype=dtype or a.get_dtype(), device=a.get_device())


def mm(a: TensorBox, b: TensorBox, *, layout: Any = None) -> TensorBox:
    """aten.mm and aten.bmm: [M, K] @ [K, N] or [B, M, K] @ [B, K, N], any strides, every dtype of types.py."""
    if _empty(a, b):
        return _zeros(a, b)
    weights = converted_weights(b)
    if weights is not None:
        left = laid_out(a)
        problem = replace(describe(left, weights), weights=weights.get_dtype())
        tile = best(context.get().info, problem, skinny.SkinnyTile) if problem.m <= min(MOST_ROWS, problem.n) else None
        if tile is not None:
            size = [*left.get_size()[:-1], weights.get_size()[-1]]
            return computed(left, weights, size, tile, functools.partial(plan, tile=tile, problem=problem))
    return _product(a, b)


def int_mm(a: TensorBox, b: TensorBox, *, layout: Any = None) -> TensorBox:
    """aten._int_mm: int8 [M, K] @ int8 [K, N] in int32; a may be uint8."""
    if _empty(a, b):
        return _zeros(a, b, torch.int32)
    if a.get_dtype() != torch.int8:
        a, b = (lowering.to_dtype(x, torch.int32) for x in (a, b))
    return _product(a, b, torch.int32)


def addmm(
    bias: TensorBox, a: TensorBox, b: TensorBox, *, beta: Any = 1, alpha: Any = 1, layout: Any = None
) -> TensorBox:
    """aten.addmm and aten.baddbmm: beta * bias + alpha * (a @ b); with beta == 0, bias is not read."""
    lowered = lowering.lowerings
    product = mm(a, b, layout=layout)
    if alpha != 1:
        product = lowered[aten.mul](product, alpha)
    if beta == 0:
        return product
    if beta != 1:
        bias = lowered[aten.mul](bias, beta)
    return lowered[aten.add](product, bias)
