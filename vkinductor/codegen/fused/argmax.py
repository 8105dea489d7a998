"""Lowering of vkinductor.linear_argmax: the kernels of fused linear layers, whose last workgroup chooses among the
greatest results of all (templates/best.jinja)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.virtualized import V

from ..counters import counters
from ..template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from ..types import glsl_type
from .lowering import fused_linear, planned
from .tiles import MOST_ROWS

aten = torch.ops.aten


def linear_argmax(
    x: TensorBox, weight: TensorBox, format: int, bias: TensorBox | None, keep: bool, norm: str = "", eps: float = 0.0,
    gain: TensorBox | None = None, shift: TensorBox | None = None, plus_one: bool = False,
) -> tuple[TensorBox, TensorBox]:  # fmt: skip
    """vkinductor.linear_argmax; rows that vary or are many take two steps."""
    device, rows = x.get_device_or_error(), V.graph.sizevars.simplify(x.get_size()[0])
    n, k = (int(V.graph.sizevars.guard_int(s)) for s in (weight.get_size()[0], x.get_size()[1]))
    few = isinstance(rows, (int, sympy.Integer)) and 0 < rows <= MOST_ROWS
    if not few or 0 in (n, k):
        results = fused_linear(x, [weight], [format], [bias], "", norm, eps, gain, shift, plus_one)
        nothing = lowering.full([rows, 0], 0, dtype=x.get_dtype(), device=device)
        return lowering.lowerings[aten.argmax.default](results, -1, False), results if keep else nothing
    rows = int(rows)
    inputs, plan = planned(x, [weight], [format], [bias], "", norm, eps, gain, shift, plus_one, None, turns=False)
    # Two words each; a workgroup has one row of weights at least.
    bests = realized(lowering.empty_strided([rows, n], None, dtype=torch.int64, device=device))
    also = [bests, counters(rows, device)]
    kept = lowering.empty_strided([rows, n] if keep else [rows, 0], None, dtype=x.get_dtype(), device=device)
    if keep:
        also.append(realized(kept))
    plan = functools.partial(_plan, plan=plan, first=len(inputs), keep=keep, dtype=x.get_dtype())
    layout = FixedLayout(device, torch.int64, [rows], [1])
    node = VulkanTemplateBuffer(layout, [*inputs, *also], plan, name="linear_argmax", also=also)
    return TensorBox.create(node), kept


def _plan(
    kernel: VulkanTemplateKernel, plan: Callable[..., Any], first: int, keep: bool, dtype: torch.dtype
) -> tuple[str, dict[str, Any], Any]:
    """That of the linear layer's kernel, with what templates/best.jinja is told."""
    template, values, groups = plan(kernel)
    for place in (first, first + 1):
        kernel.written.add(kernel.args.input(kernel.inputs[place].get_name()))
    entry = glsl_type(dtype)
    best = {
        "parts": kernel.address(first),
        "counters": kernel.address(first + 1),
        "rounded": entry.load.format(entry.store.format("value")),
        "kept": kernel.result(first + 2) if keep else None,
    }
    return template, values | {"best": best}, groups
