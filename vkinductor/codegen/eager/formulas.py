"""Operators with numbers, written with tensors instead: a number that varies is then an input of the program.

Only operators whose numbers do vary from call to call are here (learning rates, running averages, positions); all
others have them compiled in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x + y if type(alpha) is int and alpha == 1 else x + alpha * y


def _sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - y if type(alpha) is int and alpha == 1 else x - alpha * y


def _lerp(x: Any, y: Any, weight: Any) -> Any:
    # From the nearer end, as torch does it, so that a weight of 1 gives y.
    return torch.where(abs(weight) < 0.5, x + weight * (y - x), y - (y - x) * (1 - weight))


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    # Only numbers that may vary are tensors: 0 and 1 stay what they are.
    if low is not None:
        x = torch.clamp_min(x, low) if isinstance(low, (int, float)) else torch.maximum(x, low)
    if high is not None:
        x = torch.clamp_max(x, high) if isinstance(high, (int, float)) else torch.minimum(x, high)
    return x


# Arguments are as in the operator's schema; tensors and numbers are tensors of one dtype, in which it is computed.
FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: _add,
    aten.add.Scalar: _add,
    aten.sub.Tensor: _sub,
    aten.sub.Scalar: _sub,
    aten.rsub.Scalar: lambda x, y, alpha=1: _sub(y, x, alpha),
    aten.mul.Tensor: lambda x, y: x * y,
    aten.mul.Scalar: lambda x, y: x * y,
    aten.div.Tensor: lambda x, y: x / y,
    aten.div.Scalar: lambda x, y: x / y,
    aten.addcmul.default: lambda x, a, b, value=1: x + value * a * b,
    aten.addcdiv.default: lambda x, a, b, value=1: x + value * a / b,
    aten.lerp.Scalar: _lerp,
    aten.pow.Tensor_Scalar: lambda x, y: torch.pow(x, y),
    aten.pow.Scalar: lambda x, y: torch.pow(x, y),
    aten.clamp.default: _clamp,
    aten.clamp_min.default: lambda x, low: torch.maximum(x, low),
    aten.clamp_max.default: lambda x, high: torch.minimum(x, high),
    aten.masked_fill.Scalar: lambda x, mask, value: torch.where(mask, value, x),
}

# What each result dtype is computed in.
COMPUTE: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.uint8: torch.uint8,
    torch.int8: torch.int8,
    torch.int16: torch.int16,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
}
