"""The gradient of attention: one kernel for the sums of gradient times result, one for q's, one for k's and v's."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.utils import ceildiv

from vkinductor.codegen.alignment import divides
from vkinductor.codegen.template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from vkinductor.runtime import context

from .problem import Problem, address, heads_inside, operands, strides
from .tiles import (
    BACKWARD_WORKGROUP_TILES,
    FmaTile,
    WorkgroupTile,
    backward_tile,
    matrices,
    padded,
    workgroup_tile,
)

aten = torch.ops.aten

# Places among the operands of both kernels.
_Q, _K, _V, _GRADIENT, _LSE, _DELTA, _MASK = range(7)
# Where there is no mask.
VALUE_GRADIENT = _MASK


def plan_fma(
    kernel: VulkanTemplateKernel, problem: Problem, tile: FmaTile, keys_are_rows: bool
) -> tuple[str, dict[str, Any], Any]:
    """The plan of one of both kernels: rows are queries (the gradient of q), or keys."""
    masked = bool(problem.mask)
    queries, keys = (_Q, _GRADIENT), (_K, _V)
    rows, columns = (keys, queries) if keys_are_rows else (queries, keys)
    values = problem.context(kernel) | tile.context() | {"keys_are_rows": keys_are_rows}
    for name, position in (("r1", rows[0]), ("r2", rows[1]), ("c1", columns[0]), ("c2", columns[1])):
        values |= {f"load_{name}": kernel.operand(position), f"{name}_strides": strides(kernel, position)}
    values |= {
        "load_lse": kernel.operand(_LSE),
        "load_delta": kernel.operand(_DELTA),
        "load_mask": kernel.operand(_MASK) if masked else None,
        "mask_strides": strides(kernel, _MASK) if masked else None,
        "store_v": kernel.result(_MASK + masked) if keys_are_rows else None,
    }
    count = problem.groups * ceildiv(problem.keys, tile.bq)
    if not keys_are_rows:
        count = problem.heads * ceildiv(problem.queries, tile.bq)
    return "attention_backward.glsl.jinja", values, problem.batch * count


def _plan_workgroup(
    kernel: VulkanTemplateKernel, problem: Problem, tile: WorkgroupTile, keys_are_rows: bool
) -> tuple[str, dict[str, Any], Any]:
    masked = bool(problem.mask)
    queries, keys = (_Q, _GRADIENT), (_K, _V)
    rows, columns = (keys, queries) if keys_are_rows else (queries, keys)
    places = {"r1": rows[0], "r2": rows[1], "c1": columns[0], "c2": columns[1]}
    used = {name: kernel.inputs[place] for name, place in places.items()} | {"x": kernel.node}
    if keys_are_rows:
        used["y"] = kernel.inputs[_MASK + masked]
        kernel.written.add(kernel.args.input(used["y"].get_name()))
    values = problem.context(kernel) | matrices(problem, tile, list(used.values())) | {"keys_are_rows": keys_are_rows}
    counts = {True: problem.keys, False: problem.queries}
    blocks = {True: tile.bq, False: tile.bk}
    values["y_strides"] = None
    values["whole"] = {}
    for name, operand in used.items():
        is_row = name not in ("c1", "c2")
        var = kernel.args.output(operand.get_name()) if name == "x" else kernel.args.input(operand.get_name())
        if name == "x":
            kernel.written.add(var)
        wide = problem.width if name in ("r1", "c1", "x") else problem.width_v
        fits = padded(wide) == wide and divides(blocks[is_row], counts[is_row == keys_are_rows])
        values["whole"][name] = fits
        values[f"address_{name}"] = functools.partial(address, kernel, var, operand.get_layout())
        own = [kernel.size(n) for n in operand.get_layout().stride]
        values[f"{name}_strides"] = strides(kernel, places[name]) if name in places else own
    values |= {
        "address_lse": _float_address(kernel, _LSE),
        "address_delta": _float_address(kernel, _DELTA),
        "load_mask": kernel.operand(_MASK) if masked else None,
        "mask_strides": strides(kernel, _MASK) if masked else None,
    }
    count = problem.groups * ceildiv(problem.keys, tile.bq)
    if not keys_are_rows:
        count = problem.heads * ceildiv(problem.queries, tile.bq)
    return "attention_workgroup_backward.glsl.jinja", values, problem.batch * count


def _float_address(kernel: VulkanTemplateKernel, place: int) -> str:
    operand = kernel.inputs[place]
    name = kernel.args.input(operand.get_name())
    return f"uint64_t({name}) + uint64_t({kernel.size(operand.get_layout().offset)}) * 4ul"


def backward(
    gradient: TensorBox, q: TensorBox, k: TensorBox, v: TensorBox, mask: TensorBox | None, out: TensorBox,
    lse: TensorBox, causal: bool, scale: Any,
) -> tuple[TensorBox, TensorBox, TensorBox]:  # fmt: skip
    """vkinductor.attention_backward: (dq, dk, dv). Sums go over blocks in order: the same bits at each call."""
    problem = Problem.of(q, k, v, mask, causal, scale)
    device = q.get_device_or_error()
    ops = lowering.lowerings
    product = ops[aten.mul](lowering.to_dtype(gradient, torch.float32), lowering.to_dtype(out, torch.float32))
    delta = ops[aten.sum](product, [-1])
    inputs = operands(q, k, v, gradient, lse, delta, mask)
    info = context.get().info
    whole = workgroup_tile(info, problem, inputs[:4], BACKWARD_WORKGROUP_TILES, "attention_workgroup_backward")
    tile: Any = whole or backward_tile(info, problem)
    plan_of = functools.partial(plan_fma if whole is None else _plan_workgroup, problem=problem, tile=tile)
    fuses = whole is None

    def layout(x: TensorBox) -> FixedLayout:
        return FixedLayout(device, x.get_dtype(), list(x.get_size()), heads_inside(x.get_size()))

    plan = functools.partial(plan_of, keys_are_rows=False)
    dq = VulkanTemplateBuffer(layout(q), inputs, plan, name="attention_backward_q", fuses=fuses)
    dv = lowering.empty_strided(v.get_size(), heads_inside(v.get_size()), dtype=v.get_dtype(), device=device)
    also = [realized(dv)]
    plan = functools.partial(plan_of, keys_are_rows=True)
    dk = VulkanTemplateBuffer(layout(k), [*inputs, *also], plan, name="attention_backward_kv", also=also, fuses=fuses)
    return TensorBox.create(dq), TensorBox.create(dk), dv
