"""The loss of connectionist temporal classification: its arguments in the form that the device's kernels take.

Those want the targets of a batch as one matrix and lengths as tensors of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vkinductor.device import fallback, operators

aten = torch.ops.aten

Dispatch = Callable[..., Any]

# A row of the lattice, twice, in the 16 KiB of shared memory that every device has (doubles take two places).
MAX_STATES = 1024


def kernels(dispatch: Dispatch) -> dict[str, Callable[..., Any]]:
    """The kernels by the operators' names. ``dispatch``: runs an operator that has none of its own."""
    made: dict[str, Callable[..., Any]] = {}
    for name in ("_ctc_loss", "_ctc_loss_backward"):
        for overload in ("default", "Tensor"):
            op = getattr(getattr(aten, name), overload)
            kernel = _backward if name.endswith("backward") else _loss
            made[name if overload == "default" else f"{name}.{overload}"] = _bind(kernel, dispatch, op)
    return made


def _bind(kernel: Callable[..., Any], dispatch: Dispatch, op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: kernel(dispatch, op, *args, **kwargs)


def _numbers(lengths: Any) -> list[int]:
    return lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)


def _matrix(targets: torch.Tensor, lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """[N, S], S at least 1: rows of targets that may come one after another."""
    longest = max(1, *lengths)
    targets = targets.to(device)
    if targets.dim() == 2 and targets.shape[1] >= longest:
        return targets[:, :longest]
    if not targets.numel():
        return torch.zeros((len(lengths), longest), dtype=targets.dtype, device=device)
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    places = starts[:, None] + torch.arange(longest)
    return targets.reshape(-1)[places.clamp(max=targets.numel() - 1).to(device)]


def _is_served(log_probs: torch.Tensor, targets: Any, inputs: Sequence[int], labels: Sequence[int], blank: int) -> bool:
    """Whether the kernels take these; torch says what is wrong with others, or does them."""
    if log_probs.dim() != 3 or not log_probs.numel():
        return False
    steps, count, classes = log_probs.shape
    room = targets.shape[1] if targets.dim() == 2 else targets.numel() if targets.dim() == 1 else -1
    needed = max(labels, default=0) if targets.dim() == 2 else sum(labels)
    return (
        len(inputs) == len(labels) == count
        and 0 <= blank < classes
        and all(0 <= n <= steps for n in inputs)
        and all(0 <= n < MAX_STATES // 2 for n in labels)
        and needed <= room
        and log_probs.is_floating_point()
        and targets.dtype in (torch.int64, torch.int32)
    )


def _prepared(log_probs: torch.Tensor, targets: torch.Tensor, inputs: Sequence[int], labels: Sequence[int]) -> Any:
    device = log_probs.device
    lengths = (torch.tensor(numbers, dtype=torch.int64).to(device) for numbers in (inputs, labels))
    return _matrix(targets, labels, device), *lengths


def _loss(
    dispatch: Dispatch, op: Any, log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any,
    target_lengths: Any, blank: int = 0, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """(loss of each sequence [N], alpha [N, T, 2 S + 1])."""
    inputs, labels = _numbers(input_lengths), _numbers(target_lengths)
    if not _is_served(log_probs, targets, inputs, labels, blank):
        args = (log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
        return fallback.run(op, args, {})
    return dispatch(operators.ctc_loss, log_probs, *_prepared(log_probs, targets, inputs, labels), blank)


def _backward(
    dispatch: Dispatch, op: Any, gradient: torch.Tensor, log_probs: torch.Tensor, targets: torch.Tensor,
    input_lengths: Any, target_lengths: Any, loss: torch.Tensor, alpha: torch.Tensor, blank: int,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """The gradient of log_probs."""
    inputs, labels = _numbers(input_lengths), _numbers(target_lengths)
    if not _is_served(log_probs, targets, inputs, labels, blank):
        args = (gradient, log_probs, targets, input_lengths, target_lengths, loss, alpha, blank, zero_infinity)
        return fallback.run(op, args, {})
    prepared = _prepared(log_probs, targets, inputs, labels)
    return dispatch(operators.ctc_gradient, gradient, log_probs, *prepared, loss, alpha, blank, zero_infinity)
