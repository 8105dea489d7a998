"""Reductions of segments and hashes: compiled and as eager operators, without fallbacks."""

from __future__ import annotations

import pytest
import torch
from compiled import check, name_of, on_device, same

import vkinductor


def both(f, *args) -> None:
    """Compiled and eager give what the CPU gives, on the device."""
    vkinductor.reset_stats()
    check(f, *args)
    same(f(*on_device(args)), f(*args))
    assert not vkinductor.stats()["fallbacks"]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments(reduce):
    """Given by lengths, one of them 0, or by offsets, of rows and of columns, with a start and without."""

    def f(x, lengths, offsets):
        columns = x[:4].reshape(2, 2, 3)
        ones = lengths[:2].expand(2, 2) * 0 + 1
        return (
            torch.segment_reduce(x, reduce, lengths=lengths),
            torch.segment_reduce(x, reduce, lengths=lengths, initial=2),
            torch.segment_reduce(x, reduce, offsets=offsets),
            torch.segment_reduce(columns, reduce, lengths=ones, axis=1, unsafe=True),
        )

    both(f, torch.randn(6, 3), torch.tensor([2, 0, 3, 1]), torch.tensor([0, 2, 2, 5, 6]))


def test_segments_with_nan_and_in_half_precision():
    x = torch.tensor([1.0, float("nan"), 300.0, 0.7, 0.7, 0.7])
    for dtype in (torch.float32, torch.bfloat16):
        both(
            lambda x, n: [torch.segment_reduce(x, r, lengths=n) for r in ("max", "min", "sum", "mean")],
            x.to(dtype),
            torch.tensor([2, 4]),
        )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool], ids=name_of
)
def test_hash(dtype):
    def f(x):
        return (
            torch.hash_tensor(x),
            torch.hash_tensor(x, 1),
            torch.hash_tensor(x, (0, 2), keepdim=True),
            torch.hash_tensor(x[0, 0, 0]),
        )

    both(f, (torch.randn(3, 4, 5) * 5).to(dtype))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=name_of)
def test_gradients(reduce: str, dtype: torch.dtype) -> None:
    """Equal maxima, products with zeros and NaN, an empty segment, elements in none."""
    x = torch.linspace(-2, 2, 21).view(7, 3)
    x[0], x[3, 0], x[4, 2], x[5, 2], x[5, 1] = x[1].clone(), 0, 0, 0, torch.nan
    x = x.to(dtype).requires_grad_()
    (device,) = on_device([x])
    for way, where in (("lengths", [2, 0, 4, 1]), ("offsets", [0, 2, 2, 6])):
        results = []
        for leaf in (device, x):
            y = torch.segment_reduce(leaf, reduce, **{way: torch.tensor(where).to(leaf.device)}, initial=1)
            weight = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)
            results.append(torch.autograd.grad(y, leaf, weight))
        same(*results)
    assert not vkinductor.stats()["fallbacks"]
