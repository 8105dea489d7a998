"""Lowerings of vkinductor.attention and its gradient onto the attention templates."""

from __future__ import annotations

import functools
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.utils import ceildiv

from vkinductor.codegen.alignment import divides
from vkinductor.codegen.template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from vkinductor.runtime import context

from .counts import block_counts
from .decode import decode, tile_of
from .problem import Problem, address, heads_inside, operands, strides
from .subgroups import SubgroupTile
from .subgroups import tile_of as subgroup_tile
from .tiles import FmaTile, WorkgroupTile, chosen, fma_tile, matrices, padded, workgroup_tile


def fma_values(kernel: VulkanTemplateKernel, problem: Problem, tile: FmaTile) -> dict[str, Any]:
    """What attention_forward is told of the problem, the tile, and q, k, v."""
    loads = {f"load_{name}": kernel.operand(place) for place, name in enumerate("qkv")}
    return (
        problem.context(kernel)
        | tile.context()
        | loads
        | {f"{n}_strides": strides(kernel, i) for i, n in enumerate("qkv")}
    )


def _plan_fma(kernel: VulkanTemplateKernel, problem: Problem, tile: FmaTile) -> tuple[str, dict[str, Any], Any]:
    masked = bool(problem.mask)
    values = fma_values(kernel, problem, tile) | {
        "load_mask": kernel.operand(3) if masked else None,
        "store_lse": kernel.result(3 + masked),
        "mask_strides": strides(kernel, 3) if masked else None,
    }
    groups = problem.batch * problem.heads * ceildiv(problem.queries, tile.bq)
    return "attention_forward.glsl.jinja", values, groups


def _matrix_values(kernel: VulkanTemplateKernel, problem: Problem, counted: bool = False) -> dict[str, Any]:
    """What both templates on matrices are told of a problem and its operands; ``counted``: the mask's counts follow
    it."""
    masked = bool(problem.mask)
    node = kernel.node
    layouts = [x.get_layout() for x in (*kernel.inputs[:3], node)]
    names = [kernel.args.input(x.get_name()) for x in kernel.inputs[:3]] + [kernel.args.output(node.get_name())]
    kernel.written.add(names[3])
    known = sympy.sympify(problem.scale)
    return problem.context(kernel) | {
        # A maximum of products is one of scores where the scale is positive.
        "premultiplied": masked or bool(known.free_symbols) or not known > 0,
        **{
            f"address_{x}": functools.partial(address, kernel, name, layout)
            for x, name, layout in zip(("q", "k", "v", "out"), names, layouts, strict=True)
        },
        "load_mask": kernel.operand(3) if masked else None,
        "store_lse": kernel.result(3 + masked + counted),
        "q_strides": strides(kernel, 0),
        "k_strides": strides(kernel, 1),
        "v_strides": strides(kernel, 2),
        "out_strides": [kernel.size(s) for s in layouts[3].stride],
        "mask_strides": strides(kernel, 3) if masked else None,
    }


def _plan_workgroup(
    kernel: VulkanTemplateKernel, problem: Problem, tile: WorkgroupTile
) -> tuple[str, dict[str, Any], Any]:
    rows = tile.bq * max(1, tile.teams)
    rows_fit = divides(rows, problem.queries), divides(tile.bk, problem.keys)
    columns_fit = padded(problem.width) == problem.width, padded(problem.width_v) == problem.width_v
    whole = {
        "q": rows_fit[0] and columns_fit[0],
        "k": rows_fit[1] and columns_fit[0],
        "v": rows_fit[1] and columns_fit[1],
        "o": rows_fit[0] and columns_fit[1],
    }
    values = _matrix_values(kernel, problem) | matrices(problem, tile, [*kernel.inputs[:3], kernel.node])
    groups = problem.batch * problem.heads * ceildiv(problem.queries, rows)
    return "attention_workgroup.glsl.jinja", values | {"whole": whole}, groups


def _plan_subgroup(
    kernel: VulkanTemplateKernel, problem: Problem, tile: SubgroupTile, counted: bool = False
) -> tuple[str, dict[str, Any], Any]:
    values = _matrix_values(kernel, problem, counted) | tile.context(kernel.device_info, problem, "forward")
    values["load_counts"] = kernel.operand(4) if counted else None
    values["counts_strides"] = strides(kernel, 4) if counted else None
    groups = problem.batch * problem.heads * ceildiv(problem.queries, tile.rows)
    return "attention_subgroup.glsl.jinja", values | {"whole": divides(tile.bk, problem.keys)}, groups


def _empty(size: Any, dtype: torch.dtype, device: Any) -> Any:
    """A buffer that a kernel is to fill."""
    return lowering.empty_strided(size, None, dtype=dtype, device=device)


def forward(
    q: TensorBox, k: TensorBox, v: TensorBox, mask: TensorBox | None, causal: bool, scale: Any
) -> tuple[TensorBox, TensorBox]:
    """vkinductor.attention: (out, lse)."""
    problem = Problem.of(q, k, v, mask, causal, scale)
    info = context.get().info
    device = q.get_device_or_error()
    inputs = operands(q, k, v, mask)
    size = [*q.get_size()[:3], v.get_size()[3]]
    lse = _empty(q.get_size()[:3], torch.float32, device)
    layout = FixedLayout(device, q.get_dtype(), size, heads_inside(size))
    with chosen(problem):
        few = tile_of(info, problem, *inputs[:3])
        small, whole = subgroup_tile(info, problem, inputs[:3]), workgroup_tile(info, problem, inputs[:3])
        plain = fma_tile(info, problem)
    if few is not None:
        return decode(problem, few, inputs, lse, layout), lse
    if small is not None:
        counts = None if mask is None else block_counts(mask, problem, small.tall, small.bk)
        inputs += [] if counts is None else [counts]
        plan = functools.partial(_plan_subgroup, problem=problem, tile=small, counted=counts is not None)
    elif whole is not None:
        plan = functools.partial(_plan_workgroup, problem=problem, tile=whole)
    else:
        plan = functools.partial(_plan_fma, problem=problem, tile=plain)
    results = [realized(lse)]
    fuses = small is None and whole is None
    out = VulkanTemplateBuffer(layout, [*inputs, *results], plan, name="attention", also=results, fuses=fuses)
    return TensorBox.create(out), lse
