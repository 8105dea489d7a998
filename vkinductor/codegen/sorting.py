"""Sorting a dimension: blocks of a row in shared memory, then merges of the sorted runs, each a template kernel.

Short rows of a fixed length are sorted inside row kernels instead (row_sorts.py). The templates move positions (int32),
never values: these are read where they lie, and gathered at the end, fused into the last kernel or left out where
nobody wants them. Any strides, any dimension, stable, NaN last as in torch.
"""

from __future__ import annotations

import functools
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv, sympy_product, upcast_compute_type
from torch._inductor.virtualized import V

from vkinductor.runtime.errors import UnsupportedError

from . import row_sorts
from .compat import size_hint
from .heuristics import largest_sort_block, pointwise, sort_block
from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from .types import glsl_type

aten = torch.ops.aten

# Runs merged by one kernel: fewer passes over memory, more binary searches an element.
WAYS = 8


def _common(kernel: VulkanTemplateKernel, dim: int, descending: bool) -> dict[str, Any]:
    operand = kernel.inputs[0]
    size, strides = operand.get_size(), operand.get_layout().stride
    steps = FlexibleLayout.contiguous_strides(size)
    others = [d for d in range(len(size)) if d != dim]
    register = glsl_type(upcast_compute_type(operand.get_dtype())).register
    return {
        "register": register,
        "key": row_sorts.key_type(register),
        "descending": descending,
        "load": kernel.operand(0),
        "length": kernel.size(size[dim]),
        "stride": kernel.size(strides[dim]),
        "step": kernel.size(steps[dim]),
        "rows": kernel.size(sympy_product([size[d] for d in others])),
        "dims": [(kernel.size(size[d]), kernel.size(strides[d]), kernel.size(steps[d])) for d in others],
    }


def _plan_blocks(
    kernel: VulkanTemplateKernel, dim: int, descending: bool, block: int
) -> tuple[str, dict[str, Any], Any]:
    context = _common(kernel, dim, descending)
    size = kernel.inputs[0].get_size()
    total = sympy_product([s for d, s in enumerate(size) if d != dim]) * ceildiv(size[dim], block)
    key = 8 if context["key"] == "ivec2" else 4
    lanes, blocks = sort_block(kernel.device_info, block, key + 4, size_hint(total))
    context |= {"block": block, "lanes": lanes, "blocks": blocks}
    return "sort_block.glsl.jinja", context, ceildiv(total, blocks)


def _plan_merge(kernel: VulkanTemplateKernel, dim: int, descending: bool, run: int) -> tuple[str, dict[str, Any], Any]:
    workgroup = pointwise(kernel.device_info).workgroup
    context = _common(kernel, dim, descending)
    context |= {"load_place": kernel.operand(1), "run": run, "ways": WAYS, "workgroup": workgroup}
    return "sort_merge.glsl.jinja", context, ceildiv(sympy_product(kernel.inputs[0].get_size()), workgroup)


def _block(length: Any) -> int:
    """Elements a workgroup sorts: a power of two, few different ones where the length varies."""
    from vkinductor.runtime import context

    largest = largest_sort_block(context.get().info)
    if isinstance(length, (int, sympy.Integer)):
        return min(largest, max(2, 1 << (int(length) - 1).bit_length()))
    guess = size_hint(length)
    return next((b for b in (32, 256) if guess <= b < largest), largest)


def positions(x: TensorBox, dim: int, descending: bool) -> TensorBox:
    """int32 positions along ``dim`` that sort ``x`` [any shape with at least one dimension], stably."""
    operand = realized(x)
    size = list(operand.get_size())
    length = size[dim]
    output = functools.partial(FixedLayout, operand.get_device(), torch.int32, size)
    strides = FlexibleLayout.contiguous_strides(size)
    run = _block(length)
    plan = functools.partial(_plan_blocks, dim=dim, descending=descending, block=run)
    order = TensorBox.create(VulkanTemplateBuffer(output(strides), [operand], plan, name="sort"))
    while not V.graph.sizevars.guard_or_false(sympy.Le(length, run)):
        if run >= 1 << 31:
            raise UnsupportedError(f"sorting a dimension of {length}: only lengths below 2^31 are supported")
        order.realize()
        plan = functools.partial(_plan_merge, dim=dim, descending=descending, run=run)
        order = TensorBox.create(VulkanTemplateBuffer(output(strides), [operand, realized(order)], plan, name="merge"))
        run *= WAYS
    return order


def sort_stable(x: TensorBox, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    """aten.sort.stable: (values, int64 indices)."""
    rank = len(x.get_size())
    if rank == 0:
        return lowering.clone(x), lowering.full([], 0, dtype=torch.int64, device=x.get_device())
    dim = dim % rank
    short = row_sorts.lower(x, dim, descending)
    if short is not None:
        return short
    order = positions(x, dim, descending)
    indices = lowering.to_dtype(order, torch.int64)
    return lowering.lowerings[aten.gather.default](x, dim, indices), indices


def sort(x: TensorBox, dim: int = -1, descending: bool = False) -> Any:
    """aten.sort: as sort.stable."""
    return sort_stable(x, dim=dim, descending=descending)
