"""Operators on each element that are one function of the GLSL library, and that Inductor has no operator for.

They reach the kernel through Inductor's operator for inline assembly, whose text is the function's name.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import ops
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND


def gcd(a: Any, b: Any) -> Any:
    """aten.gcd of integers, broadcast."""
    dtype = lowering.get_promoted_dtype(a, b, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)

    def inner(x: Any, y: Any) -> Any:
        return ops.inline_asm_elementwise(x, y, asm="vk_gcd", dtype=dtype)

    a, b = lowering.broadcast_tensors(lowering.to_dtype(a, dtype), lowering.to_dtype(b, dtype))
    return lowering.make_pointwise(inner)(a, b)


_LAWS = {"poisson": "vk_poisson", "binomial": "vk_binomial", "gamma": "vk_gamma_variate"}


def draw(law: str, seed: Any, a: Any, b: Any = None) -> Any:
    """vkinductor.draw: a number for each element of the parameters, from a stream of its own."""
    dtype = a.get_dtype()
    parameters = lowering.broadcast_tensors(*[lowering.to_dtype(p, torch.float32) for p in (a, b) if p is not None])
    loaders = [p.make_loader() for p in parameters]
    size = parameters[0].get_size()
    load_seed = seed.make_loader()
    flat = ir.FlexibleLayout.contiguous_strides(size)

    def inner(index: Any) -> Any:
        offset = sum((i * step for i, step in zip(index, flat, strict=True)), sympy.S.Zero)
        values = [load(index) for load in loaders]
        where = ops.to_dtype(ops.index_expr(offset, torch.int64), torch.int64)
        seed_value = load_seed([])
        return ops.inline_asm_elementwise(seed_value, where, *values, asm=_LAWS[law], dtype=torch.float32)

    made = ir.Pointwise.create(device=a.get_device(), dtype=torch.float32, inner_fn=inner, ranges=list(size))
    return lowering.to_dtype(made, dtype)
