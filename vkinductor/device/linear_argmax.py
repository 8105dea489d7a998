"""A linear layer and the place of the greatest of each row of its results, as one operator.

Owns its schema, shapes and what it means (the reference). The device's kernels are codegen's, which graphs get this
operator its passes decide.
"""

from __future__ import annotations

from typing import Any

import torch

from . import fused_linear

# As fused_linear has them: x [m, K], one weight of n rows in a format, a bias [n] or none, a norm of x before. Gives
# int64 [m], torch's argmax of the results as they are in x's dtype (of equals the first, NaN before numbers), and where
# they are to be kept the results [m, n], else [m, 0].
_SCHEMA = (
    "linear_argmax(Tensor x, Tensor weight, int format, Tensor? bias, bool keep, str norm='', float eps=0.0, "
    "Tensor? gain=None, Tensor? shift=None, bool plus_one=False) -> (Tensor, Tensor)"
)


def _shape(
    x: Any, weight: Any, format: int, bias: Any, keep: bool, norm: str = "", eps: float = 0.0, gain: Any = None,
    shift: Any = None, plus_one: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    fused_linear.check(x, [weight], [format], [bias], "", norm)
    rows = x.shape[0]
    return x.new_empty((rows,), dtype=torch.int64), x.new_empty((rows, weight.shape[0] if keep else 0))


def reference(
    x: torch.Tensor, weight: torch.Tensor, format: int, bias: Any, keep: bool, norm: str = "", eps: float = 0.0,
    gain: Any = None, shift: Any = None, plus_one: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """``vkinductor.linear_argmax`` out of torch's operators."""
    results = fused_linear.reference(x, [weight], [format], [bias], "", norm, eps, gain, shift, plus_one)
    return results.argmax(-1), results if keep else results.new_empty((x.shape[0], 0))


def _declare() -> torch.library.Library:
    library = torch.library.Library("vkinductor", "FRAGMENT")
    library.define(_SCHEMA)
    torch.library.register_fake("vkinductor::linear_argmax", _shape, lib=library)
    library.impl("linear_argmax", reference, "CPU")
    return library


_LIBRARY = _declare()

linear_argmax = torch.ops.vkinductor.linear_argmax.default


def register() -> None:
    """Eager tensors of the device: the reference's operators one by one."""
    _LIBRARY.impl("linear_argmax", reference, "PrivateUse1")
