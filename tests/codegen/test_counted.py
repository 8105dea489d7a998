"""Operators whose result's size depends on the data, and histograms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vkinductor

DEVICE = "vulkan"
# Prefix sums and binary search may still be the CPU's, and what is made of them in one program.
ELSEWHERE = {"aten.cumsum.out", "aten.searchsorted.Tensor", "aten.nonzero_static.default"}


def same(f: Callable[..., Any], *args: torch.Tensor) -> None:
    """The device gives what the CPU gives."""
    vkinductor.reset_stats()
    torch.testing.assert_close(
        [t.cpu() for t in f(*(a.to(DEVICE) for a in args))], list(f(*args)), equal_nan=True, rtol=1e-5, atol=1e-6
    )
    assert set(vkinductor.stats()["fallbacks"]) <= ELSEWHERE


def test_nonzero_and_masked_select() -> None:
    x = torch.randn(6, 5)
    mask = x > 0
    same(lambda a: [a.nonzero()], mask)
    same(lambda a: [a.nonzero(), *a.nonzero(as_tuple=True)], torch.randint(0, 2, (3, 4, 2)))
    same(lambda a: [a.argwhere(), torch.nonzero_static(a, size=4), torch.nonzero_static(a, size=40, fill_value=-3)], x)
    same(lambda a, m: [a.masked_select(m), a.masked_select(m[0]), a.t().masked_select(m.t())], x, mask)
    out = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert torch.equal(torch.nonzero(mask.to(DEVICE), out=out).cpu(), mask.nonzero())


@pytest.mark.parametrize("x", [torch.zeros(4), torch.zeros(0, 3), torch.tensor(3.0), torch.tensor(0)], ids=str)
def test_nonzero_of_little(x: torch.Tensor) -> None:
    same(lambda a: [a.nonzero()], x)


def test_masks_as_indices() -> None:
    x = torch.randn(6, 5)
    mask, row = x > 0, torch.tensor([True, False, True, True, False])
    same(lambda a, m, r: [a[m], a[:, r], a[1:, r][:, 0], a[m[:, 0], 2]], x, mask, row)

    def write(a: torch.Tensor, m: torch.Tensor, r: torch.Tensor) -> list[torch.Tensor]:
        b, c, d = a.clone(), a.clone(), a.clone()
        b[m] = torch.arange(int(m.sum()), device=a.device, dtype=a.dtype)
        c[:, r] = 7.0
        d[m] = 1.0
        return [b, c, d]

    same(write, x, mask, row)
    with pytest.raises(IndexError, match="mask"):
        x.to(DEVICE)[torch.ones(5, dtype=torch.bool, device=DEVICE)]


def test_bincount_and_equal() -> None:
    x, weights = torch.randint(0, 9, (40,)), torch.rand(40)
    same(lambda a, w: [a.bincount(), a.bincount(minlength=20), a.bincount(w), a.bincount(w.double())], x, weights)
    same(lambda a: [a.bincount(minlength=3)], torch.zeros(0, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1], device=DEVICE))
    y = x.to(DEVICE)
    assert torch.equal(y, y.clone())
    assert not torch.equal(y, y + 1)
    assert not torch.equal(y, y[:3])


def test_histograms() -> None:
    x, weights = torch.randn(50), torch.rand(50)
    same(lambda a: [*torch.histogram(a, 7), *torch.histogram(a, 5, range=(-1.0, 1.0), density=True)], x)
    same(lambda a, w: torch.histogram(a, 7, weight=w), x, weights)
    same(lambda a, e: torch.histogram(a, e), x, torch.tensor([-1.0, 0.0, 0.2, 1.0]))
    same(lambda a: [torch.histogramdd(a, [3, 4], density=True)[0]], torch.randn(50, 2))
