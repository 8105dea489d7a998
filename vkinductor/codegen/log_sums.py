"""The logarithm of a running sum of exponentials (aten.logcumsumexp), as a scan of (maximum, scaled sum).

Inductor folds logarithms: each step rounds one, and near 10000 that is a relative error of 1e-3 in the exponential of
the result, which is what the backward takes. Here the logarithm is taken once, after the scan; the sum is relative to
the exponential of the maximum and thus never overflows (Milakov and Gimelshein, arXiv:1805.02867, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import ops

from .decompositions.dtypes import compute_dtype
from .scans import log_sum


def logcumsumexp(x: Any, dim: int) -> Any:
    """The lowering of aten.logcumsumexp for a floating-point ``x`` of any shape."""
    size, dtype = x.get_size(), x.get_dtype()
    if not size:
        return lowering.clone(x)
    dim = lowering._validate_dim(x, dim)
    compute = compute_dtype(dtype)
    load = x.make_loader()

    def constant(value: float) -> Any:
        return lambda index: ops.constant(value, compute)

    start = (lambda index: ops.to_dtype(load(index), compute), constant(1.0), constant(0.0))
    width = 3 if compute == torch.float32 else 2
    top, total = ir.Scan.create(
        device=x.get_device(),
        dtypes=(compute,) * width,
        inner_fns=start[:width],
        size=size,
        axis=dim,
        combine_fn=log_sum,
    )[:2]
    assert top is not None  # Inductor's refusal, which this device never makes
    assert total is not None
    tops, totals = top.make_loader(), total.make_loader()

    def result(index: Sequence[Any]) -> Any:
        value = ops.add(tops(index), ops.log(totals(index)))
        # The backward subtracts the result that torch has rounded, and relies on the difference.
        return value if compute == dtype else ops.to_dtype(value, dtype, use_compute_types=False)

    return ir.Pointwise.create(device=x.get_device(), dtype=dtype, inner_fn=result, ranges=list(size))
