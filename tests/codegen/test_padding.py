"""Gradients of padding with copies of the border, without the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import name_of, on_device, same

import vkinductor


@pytest.mark.parametrize("pad", [(2, 1), (-1, 3, 2, 0), (1, -1, 0, 2, 2, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_replication(pad: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, *(5, 4, 3)[: len(pad) // 2]).to(dtype).requires_grad_()
    (device,) = on_device([x])
    results = []
    for leaf in (device, x):
        y = F.pad(leaf, pad, mode="replicate")
        weight = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)
        results.append(torch.autograd.grad(y, leaf, weight))
    assert not vkinductor.stats()["fallbacks"]
    same(*results, **({"atol": 0.03, "rtol": 0.02} if dtype == torch.bfloat16 else {}))
