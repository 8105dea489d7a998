"""Connectionist temporal classification: losses and gradients without the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import on_device, same

import vkinductor

STEPS, COUNT, CLASSES = 12, 4, 6
TARGETS = torch.tensor([[1, 2, 2, 3], [4, 4, 1, 0], [5, 1, 2, 3], [0, 0, 0, 0]])
INPUTS, LABELS = torch.tensor([12, 9, 3, 0]), torch.tensor([4, 2, 3, 0])


def losses(log_probs: torch.Tensor, targets: Any, inputs: Any, labels: Any, **options: Any) -> Any:
    leaf = log_probs.detach().requires_grad_()
    loss = F.ctc_loss(leaf, targets, inputs, labels, reduction="none", **options)
    weight = torch.linspace(0.5, 2, loss.numel()).view(loss.shape).to(loss)
    return [loss.detach(), *torch.autograd.grad(loss, leaf, weight)]


def hold(*args: Any, **options: Any) -> None:
    vkinductor.reset_stats()
    got = losses(*on_device(args[:2]), *args[2:], **options)
    assert not vkinductor.stats()["fallbacks"]
    same(got, losses(*args, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("blank", [0, 5])
def test_rows_of_targets(blank: int) -> None:
    """Doubled labels, a sequence just long enough for its labels, one of no steps, a blank that is not the first."""
    targets = (TARGETS + 1 + blank) % CLASSES
    log_probs = torch.randn(STEPS, COUNT, CLASSES).log_softmax(2)
    hold(log_probs, targets, INPUTS, LABELS, blank=blank)


def test_targets_one_after_another() -> None:
    log_probs = torch.randn(COUNT, STEPS, CLASSES).transpose(0, 1).log_softmax(2)
    targets = torch.cat([row[:n] for row, n in zip(TARGETS, LABELS, strict=True)])
    hold(log_probs, targets, INPUTS.tolist(), LABELS.tolist())


def test_impossible_targets() -> None:
    log_probs = torch.randn(STEPS, 1, CLASSES).log_softmax(2)
    for zero_infinity in (False, True):
        hold(log_probs, TARGETS[:1], torch.tensor([4]), torch.tensor([4]), zero_infinity=zero_infinity)


def test_more_labels_than_a_workgroup_has_invocations() -> None:
    """Many steps, too, over which logarithms in float32 lose digits: fewer than on the CPU."""
    log_probs, targets = torch.randn(700, 1, 20).log_softmax(2), torch.randint(1, 20, (1, 300))
    lengths = torch.tensor([700]), torch.tensor([300])
    got = losses(*on_device([log_probs, targets]), *lengths)
    assert not vkinductor.stats()["fallbacks"]
    cpu, exact = losses(log_probs, targets, *lengths), losses(log_probs.double(), targets, *lengths)
    for ours, theirs, want in zip(got, cpu, exact, strict=True):
        ours_off, theirs_off = ((part.cpu() - want).abs().max() for part in (ours, theirs))
        assert ours_off <= max(1e-5 * want.abs().max(), theirs_off)


def test_one_sequence_without_a_batch() -> None:
    hold(torch.randn(STEPS, CLASSES).log_softmax(1), TARGETS[0], torch.tensor(STEPS), torch.tensor(4))


def test_wrong_arguments_raise() -> None:
    log_probs = torch.randn(STEPS, COUNT, CLASSES).log_softmax(2).to("vulkan")
    with pytest.raises(RuntimeError, match="input_lengths"):
        F.ctc_loss(log_probs, TARGETS.to("vulkan"), INPUTS + 1, LABELS)
