"""Bags of embeddings and largest norms of embeddings: values and gradients without the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, name_of, on_device, same
from torch._dynamo.utils import counters as dynamo_counters

import vkinductor

TABLE = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
INDICES = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 1])
OFFSETS = torch.tensor([0, 3, 3, 7])


def gradients(f: Any, args: list[Any]) -> Any:
    y = f(*args)
    weight = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)
    leaves = [t for t in args if t.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, leaves, weight)]


def hold(f: Any, args: list[Any], run: Any = None, **tolerance: float) -> None:
    """``run`` (default: ``f`` itself) on the device gives what ``f`` gives on the CPU."""
    vkinductor.reset_stats()
    got = gradients(run or f, on_device(args))
    assert not vkinductor.stats()["fallbacks"]
    same(got, gradients(f, args), **tolerance)


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.clone().requires_grad_()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_eager(mode: str) -> None:
    """An empty bag, an index that stands for nothing, a last offset that is the end."""

    def f(table: Any, indices: Any, offsets: Any) -> Any:
        return F.embedding_bag(indices, table, offsets, mode=mode, padding_idx=2, include_last_offset=True)

    hold(f, [leaf(TABLE), INDICES, torch.cat([OFFSETS, torch.tensor([9])])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=name_of)
def test_weighted(dtype: torch.dtype) -> None:
    def f(table: Any, weights: Any, indices: Any, offsets: Any) -> Any:
        return F.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weights)

    args = [leaf(TABLE.to(dtype)), leaf(torch.linspace(0.5, 2, 9).to(dtype)), INDICES, OFFSETS]
    # The CPU rounds half-precision sums at each step.
    hold(f, args, **({} if dtype == torch.float32 else {"rtol": 2e-3, "atol": 2e-3}))


def test_compiled() -> None:
    def f(table: Any, indices: Any) -> Any:
        return F.embedding_bag(indices, table, mode="max").sin()

    dynamo_counters.clear()
    run = compiled(f, dynamic=True)
    for shape in ((3, 2), (2, 3)):  # equal sizes Dynamo would take for the same
        hold(f, [leaf(TABLE), INDICES[:6].view(shape)], run)
    assert dynamo_counters["stats"]["unique_graphs"] == 1


def test_gradients_by_frequency() -> None:
    """Against embedding's: the CPU's own kernel takes the frequencies of other indices."""

    def bags(table: Any, indices: Any) -> Any:
        return F.embedding_bag(indices.view(-1, 1), table, mode="sum", scale_grad_by_freq=True)

    def rows(table: Any, indices: Any) -> Any:
        return F.embedding(indices, table, scale_grad_by_freq=True)

    hold(rows, [leaf(TABLE), INDICES], bags)


@pytest.mark.parametrize("norm", [2.0, 1.0])
def test_largest_norm(norm: float) -> None:
    def f(table: Any, indices: Any) -> Any:
        with torch.no_grad():
            made = F.embedding(indices, table, max_norm=1.5, norm_type=norm)
        return made, table

    args = [TABLE, INDICES]
    want = f(TABLE.clone(), INDICES)
    for run in (f, compiled(f)):
        vkinductor.reset_stats()
        same(run(*on_device(args)), want)
        assert not vkinductor.stats()["fallbacks"]
