"""Lowerings of vkinductor.attention and its gradient onto the attention templates."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.utils import ceildiv

from vkinductor.codegen.template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from vkinductor.runtime import context

from .problem import Problem, operands, strides
from .tiles import FmaTile, fma_tile


def _plan_fma(kernel: VulkanTemplateKernel, problem: Problem, tile: FmaTile) -> tuple[str, dict[str, Any], Any]:
    masked = bool(problem.mask)
    values = problem.context(kernel) | tile.context() | {
        "load_q": kernel.operand(0),
        "load_k": kernel.operand(1),
        "load_v": kernel.operand(2),
        "load_mask": kernel.operand(3) if masked else None,
        "store_lse": kernel.result(3 + masked),
        "q_strides": strides(kernel, 0),
        "k_strides": strides(kernel, 1),
        "v_strides": strides(kernel, 2),
        "mask_strides": strides(kernel, 3) if masked else None,
    }
    groups = problem.batch * problem.heads * ceildiv(problem.queries, tile.bq)
    return "attention_forward.glsl.jinja", values, groups


def _empty(size: Any, dtype: torch.dtype, device: Any) -> Any:
    """A buffer that a kernel is to fill."""
    return lowering.empty_strided(size, None, dtype=dtype, device=device)


def _heads_inside(size: Any) -> list[Any]:
    """Strides of [B, H, L, D] that lies in memory as [B, L, H, D]."""
    _, heads, length, width = size
    return [length * heads * width, width, heads * width, 1]


def forward(
    q: TensorBox, k: TensorBox, v: TensorBox, mask: TensorBox | None, causal: bool, scale: Any
) -> tuple[TensorBox, TensorBox]:
    """vkinductor.attention: (out, lse)."""
    problem = Problem.of(q, k, v, mask, causal, scale)
    info = context.get().info
    device = q.get_device()
    inputs = operands(q, k, v, mask)
    size = [*q.get_size()[:3], v.get_size()[3]]
    lse = _empty(q.get_size()[:3], torch.float32, device)
    layout = FixedLayout(device, q.get_dtype(), size, _heads_inside(size))
    tile = fma_tile(info, problem)
    plan = functools.partial(_plan_fma, problem=problem, tile=tile)
    out = VulkanTemplateBuffer(layout, [*inputs, realized(lse)], plan, name="attention", also=[realized(lse)])
    return TensorBox.create(out), lse
