"""Lowerings of matrix products onto the templates.

mm, bmm, addmm and baddbmm become one template node over [batch, M, N] with strided operands (nn.Linear's
transposed weight is a stride, not a copy); bias, scaling and whatever follows fuse as its epilogue. Other
devices keep Inductor's own lowerings.
"""

from __future__ import annotations

import functools
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import upcast_compute_type
from torch._inductor.virtualized import V

from vkinductor.runtime import context

from .. import loop_limit
from ..template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out
from ..types import glsl_type, literal
from . import skinny
from .choose import choose
from .problem import Problem, describe
from .tiles import DirectTile, Tile

aten = torch.ops.aten


def _strides(operand: Any) -> list[Any]:
    """Strides of (batch, rows, columns)."""
    strides = list(operand.get_layout().stride)
    return strides if len(strides) == 3 else [sympy.S.Zero, *strides]


def plan(kernel: VulkanTemplateKernel, tile: Tile, problem: Problem) -> tuple[str, dict[str, Any], Any]:
    """The template of ``tile``, its context, and the number of workgroups."""
    if isinstance(tile, skinny.SkinnyTile):
        return skinny.plan(kernel, tile, problem)
    a, b = kernel.inputs
    batch = a.get_size()[0] if len(a.get_size()) == 3 else sympy.S.One
    m, k, n = a.get_size()[-2], a.get_size()[-1], b.get_size()[-1]
    dtype = upcast_compute_type(kernel.node.get_dtype())
    values = {
        "m": kernel.size(m),
        "n": kernel.size(n),
        "k": kernel.size(k),
        "batch": kernel.size(batch),
        "a_strides": [kernel.size(s) for s in _strides(a)],
        "b_strides": [kernel.size(s) for s in _strides(b)],
        "a_k_contiguous": problem.a_contiguous == "k",
        "b_k_contiguous": problem.b_contiguous == "k",
        "accumulator": glsl_type(dtype).register,
        "zero": literal(0, dtype),
        "load_a": kernel.operand(0),
        "load_b": kernel.operand(1),
        **tile.values(kernel.device_info, problem),
    }
    if isinstance(tile, DirectTile):
        unroll = loop_limit.unrolled(kernel.device_info, k, tile.lanes, 1, what="a matrix product")
        values["unroll"] = unroll
    return tile.template, values, tile.groups(batch, m, n)


def _product(a: TensorBox, b: TensorBox) -> TensorBox:
    """The template node of a @ b over [M, N] or [batch, M, N]."""
    left, right = laid_out(a), laid_out(b)
    size = [*left.get_size()[:-1], right.get_size()[-1]]
    if len(size) == 3:
        V.graph.sizevars.check_equals(left.get_size()[0], right.get_size()[0])
    V.graph.sizevars.check_equals(left.get_size()[-1], right.get_size()[-2])
    output = FixedLayout(left.get_device(), left.get_dtype(), size, FlexibleLayout.contiguous_strides(size))
    problem = describe(left, right)
    tile = choose(context.get().info, problem)
    make = functools.partial(plan, tile=tile, problem=problem)
    return TensorBox.create(VulkanTemplateBuffer(output, [left, right], make))


def _empty(a: TensorBox, b: TensorBox) -> bool:
    """Whether a dimension is known to be zero (then Inductor's own lowering gives zeros)."""
    return any(V.graph.sizevars.statically_known_equals(s, 0) for s in [*a.get_size(), *b.get_size()])


def _zeros(a: TensorBox, b: TensorBox) -> TensorBox:
    size = [*a.get_size()[:-1], b.get_size()[-1]]
    return lowering.full(size, 0, dtype=a.get_dtype(), device=a.get_device())


def mm(a: TensorBox, b: TensorBox, *, layout: Any = None) -> TensorBox:
    """aten.mm and aten.bmm: [M, K] @ [K, N] or [B, M, K] @ [B, K, N], any strides, every dtype of types.py."""
    return _zeros(a, b) if _empty(a, b) else _product(a, b)


def addmm(
    bias: TensorBox, a: TensorBox, b: TensorBox, *, beta: Any = 1, alpha: Any = 1, layout: Any = None
) -> TensorBox:
    """aten.addmm and aten.baddbmm: beta * bias + alpha * (a @ b); with beta == 0, bias is not read."""
    ops = lowering.lowerings
    product = mm(a, b, layout=layout)
    if alpha != 1:
        product = ops[aten.mul](product, alpha)
    if beta == 0:
        return product
    if beta != 1:
        bias = ops[aten.mul](bias, beta)
    return ops[aten.add](product, bias)
