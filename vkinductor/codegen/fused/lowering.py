"""Lowering of vkinductor.fused_linear onto one template node; what follows it fuses into its stores."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv
from torch._inductor.virtualized import V

from vkinductor.device.fused_linear import DENSE
from vkinductor.runtime import context

from ..compat import size_hint
from ..gemm.lower import side_by_side
from ..quantized import staged
from ..quantized.formats import packing
from ..quantized.operands import rows_of_blocks
from ..quantized.problem import Problem, context_of
from ..template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out
from ..wide_loads import loads
from . import choose
from .kinds import Kind, kind_of
from .tiles import FusedTile, one_product

aten = torch.ops.aten

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def fused_linear(
    x: TensorBox, weights: Sequence[TensorBox], formats: Sequence[int], biases: Sequence[TensorBox | None],
    gate: str = "", norm: str = "", eps: float = 0.0, gain: TensorBox | None = None, shift: TensorBox | None = None,
    plus_one: bool = False, tokens: TensorBox | None = None,
) -> TensorBox:  # fmt: skip
    """vkinductor.fused_linear: x [m, K], each weight [n, K] or [n, bytes of K]; see device/fused_linear.py."""
    k = int(V.graph.sizevars.guard_int(x.get_size()[1]))
    size = [(x if tokens is None else tokens).get_size()[0], columns(weights, gate)]
    if V.graph.sizevars.statically_known_equals(size[0], 0) or 0 in _sizes(weights) or k == 0:
        return _composed_of_nothing(x, size)
    plain = not (gate or norm) and all(f == DENSE for f in formats) and all(b is None for b in biases)
    rows = size_hint(size[0])
    if tokens is None and plain and one_product(context.get().info, rows, _sizes(weights), k, x.get_dtype()):
        return side_by_side(x, weights)
    inputs, plan = planned(x, weights, formats, biases, gate, norm, eps, gain, shift, plus_one, tokens)
    layout = FixedLayout(x.get_device_or_error(), x.get_dtype(), size, FlexibleLayout.contiguous_strides(size))
    return TensorBox.create(VulkanTemplateBuffer(layout, inputs, plan, name="fused_linear"))


def _sizes(weights: Sequence[TensorBox]) -> tuple[int, ...]:
    """Rows of each: constants of the kernel."""
    return tuple(int(V.graph.sizevars.guard_int(w.get_size()[0])) for w in weights)


def columns(weights: Sequence[TensorBox], gate: str) -> int:
    """Columns of the result."""
    total = sum(_sizes(weights))
    return total // 2 if gate else total


def planned(
    x: TensorBox, weights: Sequence[TensorBox], formats: Sequence[int], biases: Sequence[TensorBox | None], gate: str,
    norm: str, eps: float, gain: TensorBox | None, shift: TensorBox | None, plus_one: bool, tokens: TensorBox | None,
    turns: bool = True,
) -> tuple[list[Any], Any]:  # fmt: skip
    """The operands in memory and the plan of the template node that computes rows of the operator's result. ``turns``:
    whether a workgroup may take several tiles."""
    fixed = V.graph.sizevars.guard_int
    k, m = int(fixed(x.get_size()[1])), (x if tokens is None else tokens).get_size()[0]
    if gate and len(weights) == 1:
        weights, formats, biases = _halves(weights[0]), [*formats, *formats], _halves(biases[0])
    sizes = _sizes(weights)
    inputs = [_rows(x), *(_rows(w) if f == DENSE else _blocks(w, f) for w, f in zip(weights, formats, strict=True))]

    def place(operand: TensorBox | None) -> int | None:
        if operand is None:
            return None
        inputs.append(_vector(operand))
        return len(inputs) - 1

    pitches = tuple(int(fixed(i.get_layout().stride[0])) for i in inputs)
    named = None if tokens is None else len(inputs)
    if tokens is not None:
        inputs.append(laid_out(tokens))
    problem = Problem(
        tuple(formats), sizes, tuple(place(b) for b in biases), gate, norm, eps,
        place(gain), place(shift), plus_one, k, pitches, named,
        0 if tokens is None else int(fixed(x.get_size()[0])),
    )  # fmt: skip
    info = context.get().info
    chunks = min(k // kind.chunk.weights for kind in _kinds(inputs, problem))
    layers = choose.Layers(
        problem, inputs[0].get_dtype(), size_hint(m), isinstance(m, (int, sympy.Integer)), chunks,
        bytes=staged.wants_bytes() and any(f != DENSE for f in formats),
    )  # fmt: skip
    tile = choose.chosen(info, layers)
    if isinstance(tile, staged.StagedTile):
        return inputs, staged.plan_of(info, inputs, problem, layers.rows_staged, tile)
    assert isinstance(tile, FusedTile)
    tile = tile if turns else dataclasses.replace(tile, turns=0)
    return inputs, functools.partial(_plan, tile=tile, problem=problem, tm=layers.rows)


def _composed_of_nothing(x: TensorBox, size: list[Any]) -> TensorBox:
    if not V.graph.sizevars.statically_known_equals(x.get_size()[1], 0):
        return lowering.full(size, 0, dtype=x.get_dtype(), device=x.get_device())
    raise NotImplementedError("linear layers of no columns")


def _halves(x: TensorBox | None) -> list[Any]:
    if x is None:
        return [None, None]
    half = int(V.graph.sizevars.guard_int(x.get_size()[0])) // 2
    return [lowering.lowerings[aten.slice.Tensor](x, 0, at, at + half) for at in (0, half)]


def _rows(x: TensorBox) -> Any:
    """``x`` [rows, K] in memory, each row in one piece."""
    operand = laid_out(x)
    return operand if operand.get_layout().stride[1] == 1 else ir.ExternKernel.copy_input(operand)


def _blocks(weight: TensorBox, number: int) -> Any:
    return rows_of_blocks(weight, packing(number))


def _vector(x: TensorBox) -> Any:
    if x.get_dtype() not in _FLOATS:
        x = lowering.to_dtype(x, torch.float32)
    operand = laid_out(x)
    return operand if operand.get_layout().stride[0] == 1 else ir.ExternKernel.copy_input(operand)


def _kinds(inputs: Sequence[Any], problem: Problem) -> list[Kind]:
    """The different kinds of the weights, each with the numbers of those."""
    found: dict[Kind, Kind] = {}
    for i, number in enumerate(problem.formats):
        kind = kind_of(inputs[1 + i], number)
        found.setdefault(kind, kind).parts.append(i)
    return list(found.values())


def _of_words(kind: Kind, *operands: Any) -> bool:
    """Whether what a chunk takes is loaded by words of 32 bits, which may be chosen from."""
    dense = kind.width * kind.dtype.itemsize >= 4 if kind.format == DENSE else True
    found = [(x.get_dtype().itemsize, loads(x, kind.chunk.length).width) for x in operands if x is not None]
    return dense and all(width * itemsize >= 4 for itemsize, width in found)


def _plan(kernel: VulkanTemplateKernel, tile: FusedTile, problem: Problem, tm: int) -> tuple[str, dict[str, Any], Any]:
    """The template's context for ``tm`` rows of x at a time, and the number of workgroups."""
    x = kernel.inputs[0]
    gain, shift = (None if p is None else kernel.inputs[p] for p in (problem.gain, problem.shift))
    rows = kernel.node.get_size()[0]
    values, groups = context_of(kernel, problem, tile, tm)
    sweep = loads(x)
    kinds = _kinds(kernel.inputs, problem)
    values |= {
        "loads": tile.loads,
        "flat": tile.flat and all(_of_words(kind, x, gain, shift) for kind in kinds),
        "own_loads": tile.own,
        "direct": tile.direct,
        "shift": "" if problem.shift is None else kernel.address(problem.shift),
        "shift_bytes": 0 if shift is None else shift.get_dtype().itemsize,
        "sweep_width": sweep.width,
        "sweep_type": sweep.type,
        "sweep_elements": sweep.elements,
        "kinds": [kind.values(problem.k, tile.lanes, tile.loads, x, gain, shift) for kind in kinds],
    }
    count = groups * ceildiv(rows, tm)
    once = len(kinds) == 1 and not (values["kinds"][0]["passes"] and values["kinds"][0]["rest"])
    values["turns"] = bool(
        tile.turns and once and values["kinds"][0]["passes"] <= 1 and values["flat"] and problem.norm != "layer"
        and isinstance(rows, (int, sympy.Integer)) and rows <= tm
    )  # fmt: skip
    return "fused_linear.glsl.jinja", values, min(count, tile.turns) if values["turns"] else count
