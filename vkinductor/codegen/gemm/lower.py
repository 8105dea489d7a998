"""Lowerings of matrix products onto the templates.

mm, bmm, addmm and baddbmm become one template node over [batch, M, N] with strided operands (nn.Linear's
transposed weight is a stride, not a copy); bias, scaling and whatever follows fuse as its epilogue. Other
devices keep Inductor's own lowerings.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
from . import broadcast, skinny, stream
from .choose import affords, best, chosen, computed_operands, is_forced
from .mixed import converted_weights
from .problem import MOST_ROWS, Problem, describe
from .prologue import Functions, Prologue, functions, prologue
from .side_by_side import SideBySide, address, tile_of
from .tiles import BlockTile, DirectTile, RegisterTile, Tile

aten = torch.ops.aten

# Those whose last two arguments are the operands.
_PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)


def _strides(operand: Any) -> list[Any]:
    """Strides of (batch, rows, columns)."""
    strides = list(operand.get_layout().stride)
    return strides if len(strides) == 3 else [sympy.S.Zero, *strides]


def _brought(name: str, size: Any, tile: BlockTile, problem: Problem) -> dict[str, Any]:
    """What a template that brings whole tiles knows of an operand, wherever it comes from: the dimension that tiles lie
    ``along`` and the ``other`` one that is not k, and whether every tile is ``full``, so that nothing needs a check."""
    along = problem.a_contiguous if name == "a" else problem.b_contiguous
    (other, k), block = (size[-2:], tile.bm) if name == "a" else (reversed(size[-2:]), tile.bn)
    return {
        "axes": (),
        "computed": "",
        "along": along or "k",
        "other": "m" if name == "a" else "n",
        "outer_full": divides(block, other),
        "k_full": divides(tile.bk, k),
    }


def block_operand(kernel: VulkanTemplateKernel, position: int, name: str, tile: BlockTile, problem: Problem) -> Any:
    """What such a template knows of operand ``name``, the input at ``position``."""
    operand = kernel.inputs[position]
    batch, rows, columns = _strides(operand)
    of_k, of_other = (columns, rows) if name == "a" else (rows, columns)
    brought = _brought(name, operand.get_size(), tile, problem)
    k_inner = brought["along"] == "k"
    return {
        **brought,
        "width": problem.a_width if name == "a" else problem.b_width,
        "address": kernel.address(position),
        "batch_stride": kernel.size(batch),
        "inner_stride": kernel.size(of_k if k_inner else of_other),
        "outer_stride": kernel.size(of_other if k_inner else of_k),
    }


def _computed_block(
    kernel: VulkanTemplateKernel, operand: Prologue, name: str, tile: BlockTile, problem: Problem
) -> tuple[Any, Functions]:
    """The same of one that is computed, and its functions."""
    unit = 4 if isinstance(tile, RegisterTile) else 8
    width = unit if (problem.a_width if name == "a" else problem.b_width) >= unit else 1
    made = functions(kernel, operand, f"operand_{name}", width)
    return {**_brought(name, operand.size, tile, problem), "computed": made.name, "width": width}, made


def _elements(
    kernel: VulkanTemplateKernel, operand: Any, position: int, name: str
) -> tuple[dict[str, Any], list[Functions]]:
    """What a template that brings single elements loads operand ``name`` by: GLSL of where a row or column begins, and
    of the element at k from there."""
    order = "batch, {}, k" if name == "a" else "batch, k, {}"
    if isinstance(operand, Prologue):
        made = functions(kernel, operand, f"operand_{name}", 1)
        first, load = "{}".format, f"{made.name}({order})".format
        return {f"{name}_first": first, f"load_{name}": load}, [made]
    batch, rows, columns = (kernel.size(s) for s in _strides(operand))
    of_k, of_other = (columns, rows) if name == "a" else (rows, columns)
    element = kernel.operand(position)
    values = {
        f"{name}_first": lambda other: f"batch * {batch} + {other} * {of_other}",
        f"load_{name}": lambda first: element(f"{first} + k * {of_k}"),
    }
    return values, []


def plan(
    kernel: VulkanTemplateKernel,
    tile: Tile,
    problem: Problem,
    operands: tuple[Prologue | None, Prologue | None],
    weights: int = 1,
) -> tuple[str, dict[str, Any], Any]:
    """The template of ``tile``, its context, and the number of workgroups. ``operands``: those that are computed.
    ``weights``: how many stand side by side in the place of B."""
    if isinstance(tile, skinny.SkinnyTile):
        return skinny.plan(kernel, tile, problem)
    # The inputs of what is computed stand in its place.
    places = 0, len(operands[0].inputs) if operands[0] is not None else 1
    named = list(zip("ab", (o or kernel.inputs[p] for o, p in zip(operands, places, strict=True)), places, strict=True))
    a, b = (operand for _, operand, _ in named)
    together = SideBySide(tuple(kernel.inputs[1 : 1 + weights]))
    b = b if weights == 1 else together
    batch = a.get_size()[0] if len(a.get_size()) == 3 else sympy.S.One
    m, k, n = a.get_size()[-2], a.get_size()[-1], b.get_size()[-1]
    dtype = upcast_compute_type(kernel.node.get_dtype())
    made: list[Functions] = []
    values: dict[str, Any] = {
        "m": kernel.size(m),
        "n": kernel.size(n),
        "k": kernel.size(k),
        "batch": kernel.size(batch),
        "accumulator": glsl_type(dtype).register,
        "zero": literal(0, dtype),
        "wrap": glsl_type(dtype).wrap,
        "n_width": next(width for width in (8, 4, 2, 1) if divides(width, n)),
        "prologues": made,
        # The functions of an epilogue; those of a prologue have sums to come.
        "half_results": not any(operands),
        **tile.values(kernel.device_info, problem),
    }
    for name, operand, place in named:
        if not isinstance(tile, BlockTile):
            loads, more = _elements(kernel, operand, place, name)
            values |= loads
            made += more
        elif isinstance(operand, Prologue):
            values[name], functions_of = _computed_block(kernel, operand, name, tile, problem)
            made.append(functions_of)
        else:
            values[name] = block_operand(kernel, place, name, tile, problem)
    if weights > 1:
        values["b"]["address"] = address(kernel, together, 1, values["b"]["outer_stride"])
    values["a_k_contiguous"], values["b_k_contiguous"] = problem.a_contiguous == "k", problem.b_contiguous == "k"
    if isinstance(tile, BlockTile) and tile.streams:
        values |= stream.values(kernel, tile.grain, k, tile.streams)
    if isinstance(tile, broadcast.BroadcastTile):
        values |= broadcast.values(kernel, tile, problem, k, (_strides(a), _strides(b)))
    if isinstance(tile, DirectTile):
        unroll = loop_limit.unrolled(kernel.device_info, k, tile.lanes, 1, what="a matrix product")
        values["unroll"] = unroll
    return tile.template, values, tile.groups(batch, m, n)


def _operands(a: TensorBox, b: TensorBox) -> tuple[Any, Any]:
    """Both as they reach the kernel: computed where that pays, else laid out in memory."""
    info, node = context.get().info, V.graph.current_node
    nodes = node.args[-2:] if node.target in _PRODUCTS else (None, None)
    found = [prologue(x, n) for x, n in zip((a, b), nodes, strict=True)]
    if not any(found):
        return laid_out(a), laid_out(b)
    problem = describe(found[0] or laid_out(a), found[1] or laid_out(b))
    kept = computed_operands(info, problem)
    left, right = (f if k and f is not None else laid_out(x) for x, f, k in zip((a, b), found, kept, strict=True))
    return left, right


def _product(a: TensorBox, b: TensorBox, dtype: torch.dtype | None = None) -> TensorBox:
    """The template node of a @ b over [M, N] or [batch, M, N], in a's dtype if none is given."""
    left, right = _operands(a, b)
    size = [*left.get_size()[:-1], right.get_size()[-1]]
    if len(size) == 3:
        V.graph.sizevars.check_equals(left.get_size()[0], right.get_size()[0])
    V.graph.sizevars.check_equals(left.get_size()[-1], right.get_size()[-2])
    problem = describe(left, right)
    tile, affords = chosen(context.get().info, problem)
    inputs = [laid_out(i) for x in (left, right) for i in (x.inputs if isinstance(x, Prologue) else [x])]
    made = (left if isinstance(left, Prologue) else None, right if isinstance(right, Prologue) else None)
    make = functools.partial(plan, tile=tile, problem=problem, operands=made)
    uses = sum((s for operand in made if operand is not None for s in operand.size), sympy.S.Zero)
    return computed(inputs, size, dtype or a.get_dtype(), tile, make, uses=uses, affords=affords)


def side_by_side(x: TensorBox, weights: Sequence[TensorBox]) -> TensorBox:
    """x [m, k] times each of ``weights`` [n, k] transposed: [m, sum of n], one's columns after another's."""
    left, info = laid_out(x), context.get().info
    right = [laid_out(lowering.permute(w, [1, 0])) for w in weights]
    sizes = [int(V.graph.sizevars.guard_int(w.get_size()[1])) for w in right]
    each = [describe(left, w) for w in right]
    problem = replace(each[0], n=sum(sizes), b_width=min(p.b_width for p in each))
    tile = tile_of(info, problem, sizes)
    if tile is None or any(w.get_layout().stride != right[0].get_layout().stride for w in right):
        return lowering.cat([mm(x, lowering.permute(w, [1, 0])) for w in weights], 1)
    affordable = None if is_forced() else functools.partial(affords, info, problem, tile)
    make = functools.partial(plan, tile=tile, problem=problem, operands=(None, None), weights=len(right))
    size = [left.get_size()[0], sympy.Integer(sum(sizes))]
    return computed([left, *right], size, x.get_dtype(), tile, make, affords=affordable)


def computed(
    inputs: Sequence[Any],
    size: list[Any],
    dtype: torch.dtype,
    tile: Tile,
    make: Any,
    name: str = "matmul",
    uses: Any = sympy.S.Zero,
    affords: Any = None,
) -> TensorBox:
    """The template node of plan ``make`` over laid out inputs: ``size`` in ``dtype``; with splits, their sum."""
    also: list[Any] = []
    if isinstance(tile, BlockTile) and tile.streams:
        scratch = stream.scratch(tile.parts_bytes(), tile.streams, inputs[0].get_device())
        inputs, also = [*inputs, *scratch], scratch
    parts, whole = dtype, size
    if tile.splits > 1:
        parts, whole = upcast_sum(dtype), [sympy.Integer(tile.splits), *size]
    output = FixedLayout(inputs[0].get_device(), parts, whole, FlexibleLayout.contiguous_strides(whole))
    fuses = tile.splits == 1
    node = VulkanTemplateBuffer(output, inputs, make, name=name, fuses=fuses, uses=uses, also=also, affords=affords)
    made = TensorBox.create(node)
    return made if fuses else _sum(made, tile.splits, size, dtype)


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
            make = functools.partial(plan, tile=tile, problem=problem, operands=(None, None))
            return computed([left, weights], size, a.get_dtype(), tile, make)
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
