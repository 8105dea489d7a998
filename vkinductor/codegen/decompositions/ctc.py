"""The loss of connectionist temporal classification and its gradient, from the rows of its lattice.

Graves, Fernandez, Gomez, Schmidhuber, "Connectionist temporal classification" (2006), equations 8 and 16. States are
blank, label, blank, ..., one row a step; what counts of inputs and targets is given by lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vkinductor.device import operators


def _loss(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int) -> Any:
    alpha = operators.ctc_states(log_probs, targets, input_lengths, target_lengths, blank, False)
    time = (input_lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, alpha.shape[2])
    row = alpha.gather(1, time).squeeze(1)
    last = 2 * target_lengths[:, None]
    end, before = row.gather(1, last).squeeze(1), row.gather(1, (last - 1).clamp(min=0)).squeeze(1)
    loss = -torch.where(target_lengths > 0, torch.logaddexp(end, before), end)
    empty = torch.where(target_lengths > 0, float("inf"), 0.0).to(loss.dtype)
    return torch.where(input_lengths > 0, loss, empty), alpha


def _gradient(
    gradient: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, loss: Any, alpha: Any,
    blank: int, zero_infinity: bool,
) -> Any:  # fmt: skip
    steps = log_probs.shape[0]
    beta = operators.ctc_states(log_probs, targets, input_lengths, target_lengths, blank, True)
    state = torch.arange(alpha.shape[2], device=alpha.device)
    is_label = (state % 2 == 1) & (state < 2 * target_lengths[:, None])
    labels = targets[:, (state // 2).clamp(max=targets.shape[1] - 1)]
    places = torch.where(is_label, labels.to(torch.int64), blank)[:, None, :].expand(alpha.shape)
    by_sequence = log_probs.transpose(0, 1)
    # Both count the step's own probability. Shares of a step sum to 1: that takes out what was rounded on the way.
    possible = (alpha > float("-inf")) & (beta > float("-inf"))
    inner = torch.where(possible, alpha + beta - by_sequence.gather(2, places), float("-inf"))
    taken = torch.where(possible, torch.softmax(inner, 2), 0)
    shares = torch.zeros(by_sequence.shape, dtype=alpha.dtype, device=alpha.device).scatter_add(2, places, taken)
    made = (by_sequence.exp() - shares) * gradient[:, None, None]
    made = torch.where(loss[:, None, None] < float("inf"), made, 0.0 if zero_infinity else float("nan"))
    inside = torch.arange(steps, device=alpha.device)[None, :, None] < input_lengths[:, None, None]
    return torch.where(inside, made, 0).transpose(0, 1).contiguous()


TABLE: dict[Any, Callable[..., Any]] = {
    operators.ctc_loss: _loss,
    operators.ctc_gradient: _gradient,
}
