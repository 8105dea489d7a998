"""Linear layers that share their rows x, with a norm before and a gate after them, as one operator.

Owns its schema, shapes and what it means (the reference). The device's kernels are codegen's, which graphs get this
operator its passes decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from vkinductor.device.quantized import format_of, linear_reference

# A weight that is a dense tensor, among the numbers of formats.
DENSE = -1

# What rows of a table may be named by.
TOKENS = (torch.int32, torch.int64)

NORMS = ("", "rms", "layer")

# gate -> what is done to the first result before it is multiplied by the second; "": results side by side.
GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}

# x [m, K] of floats; weights [n, K] of x's dtype (format -1) or uint8 [n, bytes of K weights] of a format; a bias [n]
# or none for each. norm "rms": x / sqrt(mean(x^2) + eps) * gain, "layer": (x - mean) / sqrt(var + eps) * gain + shift;
# gain and shift [K] or none, plus_one: gain is 1 more than what is given. gate: act(first) * second, of two weights or
# of the halves of one; else the results follow each other: [m, sum of n]. Sums are float32, rounded once. With tokens
# (integers [m], negative ones count from the end) x is a table [V, K] and its rows x[tokens] are meant; on the device
# tokens that are out of bounds are taken for the nearest that is not.
_SCHEMA = (
    "fused_linear(Tensor x, Tensor[] weights, int[] formats, Tensor?[] biases, str gate='', str norm='', "
    "float eps=0.0, Tensor? gain=None, Tensor? shift=None, bool plus_one=False, Tensor? tokens=None) -> Tensor"
)


def columns(weights: Sequence[Any], gate: str) -> int:
    """Columns of the result."""
    total = sum(w.shape[0] for w in weights)
    return total // 2 if gate else total


def check(x: Any, weights: Sequence[Any], formats: Sequence[int], biases: Sequence[Any], gate: str, norm: str) -> None:
    """Raises ValueError for what the operator does not define."""
    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}: known are {', '.join(map(repr, NORMS))}")
    if gate and gate not in GATES:
        raise ValueError(f"unknown gate {gate!r}: known are {', '.join(GATES)}")
    if not len(weights) == len(formats) == len(biases):
        raise ValueError(
            f"{len(weights)} weights, {len(formats)} formats and {len(biases)} biases: one of each, please"
        )
    if x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dimensions, not 2")
    for weight, number in zip(weights, formats, strict=True):
        _check_weight(x, weight, number)
    if not gate:
        return
    sizes = [w.shape[0] for w in weights]
    pair = len(sizes) == 2 and sizes[0] == sizes[1]
    if not (pair or (len(sizes) == 1 and sizes[0] % 2 == 0)):
        raise ValueError(f"a gate takes two weights of one size or one of even size, not rows {sizes}")


def _check_weight(x: Any, weight: Any, number: int) -> None:
    if number == DENSE:
        if weight.dtype != x.dtype:
            raise ValueError(f"weights of {weight.dtype} and x of {x.dtype}: they have one dtype")
        if weight.shape[1] != x.shape[1]:
            raise ValueError(f"x has {x.shape[1]} columns, the weights {weight.shape[1]}")
    elif weight.dtype != torch.uint8 or format_of(number).row_bytes(x.shape[1]) != weight.shape[1]:
        wanted = f"uint8 rows of {format_of(number).row_bytes(x.shape[1])} bytes"
        raise ValueError(f"weights in {format_of(number).name} are {wanted}, not {weight.dtype} of {weight.shape[1]}")


def _check_tokens(tokens: Any) -> None:
    if tokens is not None and (tokens.dim() != 1 or tokens.dtype not in TOKENS):
        raise ValueError(f"tokens are {tokens.dtype} {list(tokens.shape)}, not int32 or int64 [m]")


def _shape(
    x: Any, weights: Any, formats: Any, biases: Any, gate: str = "", norm: str = "", eps: float = 0.0,
    gain: Any = None, shift: Any = None, plus_one: bool = False, tokens: Any = None,
) -> torch.Tensor:  # fmt: skip
    check(x, weights, formats, biases, gate, norm)
    _check_tokens(tokens)
    return x.new_empty(((x if tokens is None else tokens).shape[0], columns(weights, gate)))


def normalized(x: torch.Tensor, norm: str, eps: float, gain: Any, shift: Any, plus_one: bool) -> torch.Tensor:
    """The rows of float32 ``x`` after the norm."""
    if not norm:
        return x
    if norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if gain is not None:
        x = x * (gain.float() + 1 if plus_one else gain.float())
    return x if shift is None else x + shift.float()


def reference(
    x: torch.Tensor, weights: Any, formats: Any, biases: Any, gate: str = "", norm: str = "", eps: float = 0.0,
    gain: Any = None, shift: Any = None, plus_one: bool = False, tokens: Any = None,
) -> torch.Tensor:  # fmt: skip
    """``vkinductor.fused_linear`` out of torch's operators, all of it in float32 before the result is rounded."""
    check(x, weights, formats, biases, gate, norm)
    _check_tokens(tokens)
    if tokens is not None:
        x = x[tokens]
    rows = normalized(x.float(), norm, eps, gain, shift, plus_one)
    results = []
    for weight, number, bias in zip(weights, formats, biases, strict=True):
        product = rows @ weight.float().T if number == DENSE else _packed_product(rows, weight, number)
        results.append(product if bias is None else product + bias.float())
    if gate:
        first, second = results if len(results) == 2 else results[0].chunk(2, -1)
        return (GATES[gate](first) * second).to(x.dtype)
    return torch.cat(results, -1).to(x.dtype)


def _packed_product(rows: torch.Tensor, weight: torch.Tensor, number: int) -> torch.Tensor:
    if rows.device.type == "cpu":
        return linear_reference(rows, weight, number)
    return torch.ops.vkinductor.quantized_linear(rows, weight, number)


def _declare() -> torch.library.Library:
    library = torch.library.Library("vkinductor", "FRAGMENT")
    library.define(_SCHEMA)
    torch.library.register_fake("vkinductor::fused_linear", _shape, lib=library)
    library.impl("fused_linear", reference, "CPU")
    return library


_LIBRARY = _declare()

fused_linear = torch.ops.vkinductor.fused_linear.default


def register() -> None:
    """Eager tensors of the device: the reference's operators one by one."""
    _LIBRARY.impl("fused_linear", reference, "PrivateUse1")
