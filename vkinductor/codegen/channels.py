"""What a batch norm does to each channel, computed once: vkinductor.scale_and_shift.

It stands behind a convolution, whose kernel would else find a channel's factor anew for each of its elements: two loads
and a multiply-add are left of four loads and a square root.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.ir import TensorBox
from torch._inductor.virtualized import V

from .decompositions.dtypes import compute_dtype

aten = torch.ops.aten


def scale_and_shift(
    weight: TensorBox | None, bias: TensorBox | None, mean: TensorBox, var: TensorBox, eps: float
) -> tuple[TensorBox, TensorBox]:
    """(weight / deviation, bias - mean * that), of [C]; buffers where kernels of convolutions follow (``layout_opt``:
    see compat.decide_layouts), and part of what follows elsewhere."""
    ops = lowering.lowerings
    dtype = compute_dtype(mean.get_dtype())

    def wide(operand: TensorBox) -> Any:
        return lowering.to_dtype(operand, dtype)

    scale = ops[aten.rsqrt](ops[aten.add](wide(var), eps))
    if weight is not None:
        scale = ops[aten.mul](scale, wide(weight))
    shift = ops[aten.neg](ops[aten.mul](wide(mean), scale))
    if bias is not None:
        shift = ops[aten.add](shift, wide(bias))
    if V.graph.layout_opt:
        scale.realize()
        shift.realize()
    return scale, shift
