"""Sampling at the points of a grid: values and both gradients, eager and compiled, without the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import check, compiled, on_device, same
from torch._dynamo.utils import counters as dynamo_counters

import vkinductor

CASES = [
    (2, "bilinear", "zeros", False),
    (2, "nearest", "reflection", True),
    (2, "bicubic", "border", False),
    (3, "bilinear", "border", True),
    (3, "bilinear", "reflection", False),
    (3, "nearest", "zeros", True),
]


def inputs(dims: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """An image whose last dimension has one element less than others, and points inside and out of it."""
    x = torch.randn(2, 3, *(5, 4, 3)[:dims])
    grid = torch.rand(2, *(4, 3, 2)[:dims], dims) * 3 - 1.5
    return [x.to(dtype).requires_grad_(), grid.to(dtype).requires_grad_()]


def gradients(f: Any, args: list[torch.Tensor]) -> Any:
    y = f(*args)
    weight = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)
    return [y.detach(), *torch.autograd.grad(y, args, weight)]


@pytest.mark.parametrize(("dims", "mode", "padding", "align"), CASES)
def test_eager(dims: int, mode: str, padding: str, align: bool) -> None:
    def f(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align)

    args = inputs(dims)
    vkinductor.reset_stats()
    got = gradients(f, on_device(args))
    assert not vkinductor.stats()["fallbacks"]
    same(got, gradients(f, args), rtol=1e-4, atol=1e-4)


def test_compiled() -> None:
    def f(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, padding_mode="reflection", align_corners=True).relu()

    dynamo_counters.clear()
    g = compiled(f, dynamic=True)
    for points in (6, 7):  # no sizes of x, which Dynamo would take for the same
        x, grid = inputs(3)
        args = [x, grid[:, :1].expand(-1, points, -1, -1, -1).detach().requires_grad_()]
        vkinductor.reset_stats()
        got = gradients(g, on_device(args))
        assert not vkinductor.stats()["fallbacks"]
        same(got, gradients(f, args), rtol=1e-4, atol=1e-4)
    assert dynamo_counters["stats"]["unique_graphs"] == 1


def test_half_precision_accumulates_in_float32() -> None:
    x = torch.randn(1, 1, 2, 2, 2).half()
    grid = torch.zeros(1, 40, 40, 1, 3).half()

    def f(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, align_corners=False)

    want = gradients(f, [x.float().requires_grad_(), grid.float().requires_grad_()])
    got = gradients(f, on_device([x.requires_grad_(), grid.requires_grad_()]))
    same(got[1], want[1].half(), rtol=2e-3, atol=1e-3)


def test_points_that_are_no_numbers_read_nothing() -> None:
    x = torch.randn(1, 1, 3, 4, 5)
    grid = torch.tensor([float("nan"), float("inf"), 1e30, 0.0]).view(1, 4, 1, 1, 1).expand(1, 4, 1, 1, 3)
    check(lambda x, g: F.grid_sample(x, g, align_corners=False), x, grid.contiguous())
