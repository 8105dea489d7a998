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
from .subgroups import SubgroupTile
from .subgroups import tile_of as subgroup_tile
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


def _values(kernel: VulkanTemplateKernel, problem: Problem, keys_are_rows: bool) -> dict[str, Any]:
    """What every template is told: the problem, the mask, strides of the rows' operands and of the columns'."""
    masked = bool(problem.mask)
    values = problem.context(kernel) | {
        "keys_are_rows": keys_are_rows,
        "load_mask": kernel.operand(_MASK) if masked else None,
        "mask_strides": strides(kernel, _MASK) if masked else None,
    }
    return values | {f"{name}_strides": strides(kernel, place) for name, place in _places(keys_are_rows).items()}


def _places(keys_are_rows: bool) -> dict[str, int]:
    """Places of the operands of rows and columns: r1 and c1 make scores, r2 and c2 gradients of probabilities."""
    queries, keys = (_Q, _GRADIENT), (_K, _V)
    rows, columns = (keys, queries) if keys_are_rows else (queries, keys)
    return {"r1": rows[0], "r2": rows[1], "c1": columns[0], "c2": columns[1]}


def _groups(problem: Problem, rows: int, keys_are_rows: bool) -> Any:
    """Workgroups of ``rows`` rows."""
    if keys_are_rows:
        return problem.batch * problem.groups * ceildiv(problem.keys, rows)
    return problem.batch * problem.heads * ceildiv(problem.queries, rows)


def plan_fma(
    kernel: VulkanTemplateKernel, problem: Problem, tile: FmaTile, keys_are_rows: bool
) -> tuple[str, dict[str, Any], Any]:
    """The plan of one of both kernels: rows are queries (the gradient of q), or keys."""
    places = _places(keys_are_rows)
    values = _values(kernel, problem, keys_are_rows) | tile.context()
    values |= {f"load_{name}": kernel.operand(place) for name, place in places.items()}
    values |= {
        "load_lse": kernel.operand(_LSE),
        "load_delta": kernel.operand(_DELTA),
        "store_v": kernel.result(_MASK + bool(problem.mask)) if keys_are_rows else None,
    }
    return "attention_backward.glsl.jinja", values, _groups(problem, tile.bq, keys_are_rows)


def _used(kernel: VulkanTemplateKernel, problem: Problem, keys_are_rows: bool) -> dict[str, Any]:
    """Operands of the rows and columns and the results, by their names in the templates on matrices."""
    used = {name: kernel.inputs[place] for name, place in _places(keys_are_rows).items()} | {"x": kernel.node}
    if keys_are_rows:
        used["y"] = kernel.inputs[_MASK + bool(problem.mask)]
    return used


def _matrix_values(kernel: VulkanTemplateKernel, problem: Problem, keys_are_rows: bool) -> dict[str, Any]:
    """As ``_values``, for both templates on matrices."""
    values = _values(kernel, problem, keys_are_rows) | {"y_strides": None}
    for name, operand in _used(kernel, problem, keys_are_rows).items():
        var = kernel.args.output(operand.get_name()) if name == "x" else kernel.args.input(operand.get_name())
        values[f"address_{name}"] = functools.partial(address, kernel, var, operand.get_layout())
        if name in ("x", "y"):
            kernel.written.add(var)
            values[f"{name}_strides"] = [kernel.size(n) for n in operand.get_layout().stride]
    return values | {"address_lse": _float_address(kernel, _LSE), "address_delta": _float_address(kernel, _DELTA)}


def _plan_workgroup(
    kernel: VulkanTemplateKernel, problem: Problem, tile: WorkgroupTile, keys_are_rows: bool
) -> tuple[str, dict[str, Any], Any]:
    used = _used(kernel, problem, keys_are_rows)
    values = _matrix_values(kernel, problem, keys_are_rows) | matrices(problem, tile, list(used.values()))
    counts, blocks = {True: problem.keys, False: problem.queries}, {True: tile.bq, False: tile.bk}

    def whole(name: str) -> bool:
        is_row, wide = name not in ("c1", "c2"), problem.width if name in ("r1", "c1", "x") else problem.width_v
        return padded(wide) == wide and divides(blocks[is_row], counts[is_row == keys_are_rows])

    values["whole"] = {name: whole(name) for name in used}
    return "attention_workgroup_backward.glsl.jinja", values, _groups(problem, tile.bq, keys_are_rows)


def _plan_subgroup(
    kernel: VulkanTemplateKernel, problem: Problem, tile: SubgroupTile, keys_are_rows: bool
) -> tuple[str, dict[str, Any], Any]:
    own = tile.context(kernel.device_info, problem, "keys" if keys_are_rows else "queries")
    values = _matrix_values(kernel, problem, keys_are_rows) | own
    values["whole"] = divides(tile.bk, problem.queries if keys_are_rows else problem.keys)
    return "attention_subgroup_backward.glsl.jinja", values, _groups(problem, tile.rows, keys_are_rows)


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
    small = [subgroup_tile(info, problem, inputs[:4], "queries"), subgroup_tile(info, problem, inputs[:4], "keys")]
    whole = workgroup_tile(info, problem, inputs[:4], BACKWARD_WORKGROUP_TILES, "attention_workgroup_backward")

    def plan_of(keys_are_rows: bool) -> Any:
        tile: Any = small[keys_are_rows]
        plan: Any = _plan_subgroup
        if tile is None:
            tile, plan = (backward_tile(info, problem), plan_fma) if whole is None else (whole, _plan_workgroup)
        return functools.partial(plan, problem=problem, tile=tile, keys_are_rows=keys_are_rows)

    def layout(x: TensorBox) -> FixedLayout:
        return FixedLayout(device, x.get_dtype(), list(x.get_size()), heads_inside(x.get_size()))

    fuses = [tile is None and whole is None for tile in small]
    dq = VulkanTemplateBuffer(layout(q), inputs, plan_of(False), name="attention_backward_q", fuses=fuses[0])
    dv = lowering.empty_strided(v.get_size(), heads_inside(v.get_size()), dtype=v.get_dtype(), device=device)
    also = [realized(dv)]
    both = [*inputs, *also]
    dk = VulkanTemplateBuffer(layout(k), both, plan_of(True), name="attention_backward_kv", also=also, fuses=fuses[1])
    return TensorBox.create(dq), TensorBox.create(dk), dv
