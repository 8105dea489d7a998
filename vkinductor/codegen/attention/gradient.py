"""The gradient of attention: one kernel for the sums of gradient times result, one for q's, one for k's and v's."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.utils import ceildiv

from vkinductor.codegen.template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from vkinductor.runtime import context

from .problem import Problem, heads_inside, operands, strides
from .tiles import FmaTile, backward_tile

aten = torch.ops.aten

# Places among the operands of both kernels.
_Q, _K, _V, _GRADIENT, _LSE, _DELTA, _MASK = range(7)


def _plan_fma(
    kernel: VulkanTemplateKernel, problem: Problem, tile: FmaTile, keys_are_rows: bool
) -> tuple[str, dict[str, Any], Any]:
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


def backward(
    gradient: TensorBox, q: TensorBox, k: TensorBox, v: TensorBox, mask: TensorBox | None, out: TensorBox,
    lse: TensorBox, causal: bool, scale: Any,
) -> tuple[TensorBox, TensorBox, TensorBox]:  # fmt: skip
    """vkinductor.attention_backward: (dq, dk, dv). Sums go over blocks in order: the same bits at each call."""
    problem = Problem.of(q, k, v, mask, causal, scale)
    device = q.get_device()
    ops = lowering.lowerings
    product = ops[aten.mul](lowering.to_dtype(gradient, torch.float32), lowering.to_dtype(out, torch.float32))
    delta = ops[aten.sum](product, [-1])
    inputs = operands(q, k, v, gradient, lse, delta, mask)
    tile = backward_tile(context.get().info, problem)

    def layout(x: TensorBox) -> FixedLayout:
        return FixedLayout(device, x.get_dtype(), list(x.get_size()), heads_inside(x.get_size()))

    plan = functools.partial(_plan_fma, problem=problem, tile=tile, keys_are_rows=False)
    dq = VulkanTemplateBuffer(layout(q), inputs, plan, name="attention_backward_q")
    dv = lowering.empty_strided(v.get_size(), heads_inside(v.get_size()), dtype=v.get_dtype(), device=device)
    also = [realized(dv)]
    plan = functools.partial(_plan_fma, problem=problem, tile=tile, keys_are_rows=True)
    dk = VulkanTemplateBuffer(layout(k), [*inputs, *also], plan, name="attention_backward_kv", also=also)
    return TensorBox.create(dq), TensorBox.create(dk), dv
