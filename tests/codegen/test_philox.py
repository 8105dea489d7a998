"""Random numbers in compiled graphs: equal in law to torch's, reproducible by seed, new at each call."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled

COUNT = 40_000


def rand(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


def randn(x: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(x)


def randint(x: torch.Tensor) -> torch.Tensor:
    return torch.randint(-3, 11, x.shape, device=x.device)


def dropout(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.3)


def bernoulli(x: torch.Tensor) -> torch.Tensor:
    return torch.bernoulli(torch.full_like(x, 0.25))


FUNCTIONS = [rand, randn, randint, dropout, bernoulli]
ONES = torch.ones(COUNT)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_seed_gives_the_same_numbers_again(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    g, x = compiled(f), ONES[:1000].to("vulkan")
    torch.manual_seed(7)
    first, second = g(x).cpu(), g(x).cpu()
    torch.manual_seed(7)
    assert torch.equal(g(x).cpu(), first)
    assert torch.equal(g(x).cpu(), second)
    assert not torch.equal(first, second)
    torch.manual_seed(8)
    assert not torch.equal(g(x).cpu(), first)


def moments(values: torch.Tensor, mean: float, variance: float) -> None:
    """Assert mean and variance within 5 standard errors (normal approximation)."""
    assert abs(values.mean().item() - mean) < 5 * math.sqrt(variance / len(values))
    assert abs(values.var().item() - variance) < 0.05 * variance


def test_uniform() -> None:
    values = compiled(rand)(ONES.to("vulkan")).cpu().double()
    assert values.min() >= 0
    assert values.max() < 1
    moments(values, 0.5, 1 / 12)
    levels = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    assert (torch.quantile(values, levels) - levels).abs().max() < 0.01
    assert values.unique().numel() > 0.99 * COUNT
    moments(values[:-1] * values[1:], 0.25, 1 / 9 - 1 / 16)


def test_normal() -> None:
    values = compiled(randn)(ONES.to("vulkan")).cpu().double()
    moments(values, 0, 1)
    levels = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
    assert (torch.quantile(values, levels) - torch.special.ndtri(levels)).abs().max() < 0.05
    assert values.abs().max() < 7
    assert abs((values**4).mean().item() - 3) < 0.2


def test_integers() -> None:
    values = compiled(randint)(ONES.to("vulkan")).cpu()
    assert values.dtype == torch.int64
    counts = torch.bincount(values + 3, minlength=14)
    assert counts.numel() == 14
    assert (counts - COUNT / 14).abs().max() < 6 * math.sqrt(COUNT / 14)


def test_dropout_keeps_the_share_and_the_mean() -> None:
    values = compiled(dropout)(ONES.to("vulkan")).cpu()
    kept = values != 0
    assert abs(kept.double().mean().item() - 0.7) < 0.02
    torch.testing.assert_close(values[kept], torch.full_like(values[kept], 1 / 0.7))


def test_backward_sees_the_mask_of_forward() -> None:
    x = torch.ones(3000, device="vulkan", requires_grad=True)
    y = compiled(lambda x: F.dropout(x.sin(), 0.5) * 2)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal((gradient.cpu() == 0), (y.detach().cpu() == 0))


def test_two_draws_in_one_graph_differ() -> None:
    a, b = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)))(ONES[:500].to("vulkan"))
    assert not torch.equal(a.cpu(), b.cpu())
    assert abs(torch.corrcoef(torch.stack([a.cpu(), b.cpu()]))[0, 1].item()) < 0.2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x = torch.ones(5000, dtype=dtype, device="vulkan")
    uniform, normal = compiled(lambda x: (torch.rand_like(x), torch.randn_like(x)))(x)
    assert uniform.dtype == normal.dtype == dtype
    assert abs(uniform.cpu().double().mean().item() - 0.5) < 0.03
    assert abs(normal.cpu().double().mean().item()) < 0.08
