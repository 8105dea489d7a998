"""Distances and their gradients: compiled and as eager operators, without fallbacks."""

from __future__ import annotations

import pytest
import torch
from compiled import check, on_device, same

import vkinductor


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, float("inf")])
def test_distances(p):
    def f(x, y):
        return torch.cdist(x, y, p), torch.nn.functional.pdist(x, p)

    args = torch.randn(6, 3), torch.randn(4, 3)
    vkinductor.reset_stats()
    check(f, *args)
    same(f(*on_device(args)), f(*args))

    def gradients(x, y):
        x = x.detach().requires_grad_()
        weights = torch.arange(24, device=x.device).reshape(6, 4)
        return torch.autograd.grad((torch.cdist(x, y, p) * weights).sum() + torch.nn.functional.pdist(x, p).sum(), x)

    same(gradients(*on_device(args)), gradients(*args), rtol=1e-4, atol=1e-4)
    assert not vkinductor.stats()["fallbacks"]
