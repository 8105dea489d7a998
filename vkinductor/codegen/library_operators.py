"""Operators on each element that are one function of the GLSL library, and that Inductor has no operator for.

They reach the kernel through Inductor's operator for inline assembly, whose text is the function's name.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import lowering
from torch._inductor.virtualized import ops
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND


def gcd(a: Any, b: Any) -> Any:
    """aten.gcd of integers, broadcast."""
    dtype = lowering.get_promoted_dtype(a, b, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)

    def inner(x: Any, y: Any) -> Any:
        return ops.inline_asm_elementwise(x, y, asm="vk_gcd", dtype=dtype)

    a, b = lowering.broadcast_tensors(lowering.to_dtype(a, dtype), lowering.to_dtype(b, dtype))
    return lowering.make_pointwise(inner)(a, b)
