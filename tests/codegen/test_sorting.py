"""Sorting by templates and what is made of it, against the CPU's stable sort (row kernels: test_row_sorts.py)."""

from __future__ import annotations

import pytest
import torch
from compiled import check, compiled, dispatches, name_of, on_device

from vkinductor.codegen import heuristics

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def no_row_kernels():
    with heuristics.override(row_sort=0):
        yield


def _sort(dim=-1, descending=False):
    return lambda x: torch.sort(x, stable=True, dim=dim, descending=descending)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool],
    ids=name_of,
)
def test_dtypes_with_ties(dtype, descending):
    x = torch.randint(0, 20, (3, 100)).to(dtype)
    if dtype.is_floating_point:
        x[:, ::7], x[:, ::11], x[:, ::13], x[:, ::17] = NAN, -INF, -0.0, INF
    check(_sort(1, descending), x)


@pytest.mark.parametrize("length", [0, 1, 2, 31, 32, 33, 1000, 5000, 100000])
@pytest.mark.parametrize("dynamic", [False, True])
def test_lengths(length, dynamic):
    check(_sort(), torch.randn(length).round(decimals=2), dynamic=dynamic)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dimension_of_any_strides(dim):
    x = torch.randint(0, 9, (7, 40, 5)).transpose(0, 2)[:, ::2]
    with heuristics.override(sort_block=4):
        check(_sort(dim), x)


def test_wide_integers():
    check(_sort(1), torch.randint(-(2**62), 2**62, (2, 3000, 2)))


def test_a_short_sort_with_what_follows_is_one_kernel():
    x = torch.randn(5, 100)
    f = lambda x: torch.sort(x, 1)[0] * 2  # noqa: E731
    check(f, x)
    assert dispatches(compiled(f), *on_device([x])) == 1


def test_order_statistics():
    x = torch.randn(4, 51)
    check(lambda x: (x.topk(5, 1), x.topk(2, 0, largest=False), x.kthvalue(7, 1), x.median(1), x.median()), x)
    x[0, 5] = x[0, 9] = x[1, 2:] = NAN
    check(lambda x: (x.median(1), x.nanmedian(1), x.nanmedian()), x)
    check(lambda x: x.mode(1)[0], torch.randint(0, 5, (4, 30)))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=name_of)
def test_searches(right, dtype):
    bounds, x = (torch.randn(3, 20) * 9).to(dtype), (torch.randn(3, 8) * 9).to(dtype)
    check(lambda b, x: torch.searchsorted(b.sort(1)[0], x, right=right), bounds, x)
    check(lambda b, x: torch.searchsorted(b, x, sorter=b.argsort(1), right=right, out_int32=True), bounds, x)
    check(lambda b, x: torch.bucketize(x, b[0].sort()[0], right=right), bounds, x)


def test_backward():
    grads = []
    x = torch.randn(4, 30)
    for device in ("cpu", "vulkan"):
        leaf = x.detach().clone().to(device).requires_grad_()
        f = lambda x: torch.sort(x, 1)[0][:, :9].square() + x.topk(9, 1)[0]  # noqa: E731
        (compiled(f) if device == "vulkan" else f)(leaf).sum().backward()
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])
