"""Gradients of margin losses, without the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import on_device, same

import vkinductor

TARGETS = torch.tensor([[1, 2, -1, 0, 0], [0, -1, 1, 1, 1], [3, 4, 2, 1, -1]])


def one(x: Any, reduction: str) -> Any:
    weight = torch.linspace(0.5, 1.5, 5).to(x)
    return F.multi_margin_loss(x, TARGETS[:, 0].to(x.device), p=2, margin=0.7, weight=weight, reduction=reduction)


def several(x: Any, reduction: str) -> Any:
    return F.multilabel_margin_loss(x, TARGETS.to(x.device), reduction=reduction)


@pytest.mark.parametrize("loss", [one, several])
def test_gradients(loss: Any) -> None:
    x = torch.randn(3, 5).requires_grad_()
    (device,) = on_device([x])
    for reduction in ("none", "mean"):
        results = []
        for leaf in (device, x):
            y = loss(leaf, reduction)
            results.append(torch.autograd.grad(y, leaf, torch.linspace(1, 2, y.numel()).view(y.shape).to(y)))
        same(*results)
    assert not vkinductor.stats()["fallbacks"]
