"""Operators of this package's own, which kernels of the device are made of: schemas and shapes alone.

The device runs them as it runs torch's (compiled, by lowerings of codegen). The CPU has a kernel for ``draw`` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "vkinductor"

# Name -> (schema after the name, shape of the result).
_SCHEMAS = {
    # A number of distribution "poisson", "binomial" or "gamma" for each element of the parameters, which are broadcast.
    # seed: int64, without dimensions.
    "draw": "(str law, Tensor seed, Tensor a, Tensor? b=None) -> Tensor",
    # What a batch norm that is not trained does to each channel, x * scale + shift, from statistics and parameters of
    # [C]: (scale, shift) in the dtype of the statistics, or float32 for halves.
    "scale_and_shift": "(Tensor? weight, Tensor? bias, Tensor mean, Tensor var, float eps) -> (Tensor, Tensor)",
    # The rows of a lattice of connectionist temporal classification, [N, T, 2 S + 1]: alpha, or backwards beta.
    # log_probs [T, N, C]; targets [N, S], of which the first target_lengths [N] count; input_lengths [N].
    "ctc_states": "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
    "bool backwards) -> Tensor",
    # (the loss of each sequence [N], alpha)
    "ctc_loss": "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank) "
    "-> (Tensor, Tensor)",
    # of log_probs
    "ctc_gradient": "(Tensor gradient, Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "Tensor loss, Tensor alpha, int blank, bool zero_infinity) -> Tensor",
}


def _scale_and_shift(weight: Any, bias: Any, mean: torch.Tensor, var: torch.Tensor, eps: float) -> Any:
    """The operator itself, in others."""
    compute = torch.float32 if mean.dtype in (torch.float16, torch.bfloat16) else mean.dtype
    scale = torch.rsqrt(var.to(compute) + eps)
    if weight is not None:
        scale = scale * weight.to(compute)
    shift = -mean.to(compute) * scale
    return scale, shift if bias is None else shift + bias.to(compute)


def _states(log_probs: torch.Tensor, targets: torch.Tensor, *rest: Any) -> torch.Tensor:
    steps, count, _ = log_probs.shape
    return log_probs.new_empty(count, steps, 2 * targets.shape[1] + 1)


def _loss(log_probs: torch.Tensor, targets: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return log_probs.new_empty(log_probs.shape[1]), _states(log_probs, targets)


def _gradient(gradient: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape)


def _draw(law: str, seed: torch.Tensor, a: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    shape = a.shape if b is None else torch.broadcast_shapes(a.shape, b.shape)
    return a.new_empty(shape)


def _draw_on_cpu(law: str, seed: torch.Tensor, a: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(seed))
    if b is not None:
        return torch.binomial(a, b, generator=generator)
    op = torch.poisson if law == "poisson" else torch._standard_gamma
    return op(a, generator=generator)


def _declare() -> torch.library.Library:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        library.define(name + schema)
    shapes: dict[str, Callable[..., Any]] = {
        "draw": _draw,
        "scale_and_shift": _scale_and_shift,
        "ctc_states": _states,
        "ctc_loss": _loss,
        "ctc_gradient": _gradient,
    }
    for name, shape in shapes.items():
        torch.library.register_fake(f"{NAMESPACE}::{name}", shape, lib=library)
    for name, kernel in (("draw", _draw_on_cpu), ("scale_and_shift", _scale_and_shift)):
        library.impl(name, kernel, "CPU")  # where nothing compiles for the device
    return library


_LIBRARY = _declare()

draw = torch.ops.vkinductor.draw.default
scale_and_shift = torch.ops.vkinductor.scale_and_shift.default
ctc_states = torch.ops.vkinductor.ctc_states.default
ctc_loss = torch.ops.vkinductor.ctc_loss.default
ctc_gradient = torch.ops.vkinductor.ctc_gradient.default
