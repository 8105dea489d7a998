"""Scans against the CPU: kinds, dtypes, layouts, long rows, fusion."""

from __future__ import annotations

import pytest
import torch
from compiled import check, compiled, dispatches, name_of, on_device

from vkinductor.codegen import heuristics

KINDS = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
}
LAYOUTS = ({}, {"lanes": 8, "rows": 2, "chunk": 4}, {"lanes": 16, "rows": 1, "chunk": 1})


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1])
def test_kinds_in_every_layout(kind, dim, layout):
    x = torch.rand(37, 101).add(0.5).mul(16).round().div(16)  # with ties
    with heuristics.override(**layout):
        check(lambda x: KINDS[kind](x, dim), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8], ids=name_of)
def test_dtypes(dtype):
    x = torch.randint(0, 5, (3, 33)).to(dtype)
    check(lambda x: (x.cumsum(1), x.cummax(1), x.cummin(0)), x)


@pytest.mark.parametrize("length", [0, 1, 2, 31, 32, 33])
def test_short_rows(length):
    check(lambda x: (x.cumsum(1), x.cummax(1)), torch.randn(3, length))


def test_nan_and_infinity():
    x = torch.tensor([1.0, float("inf"), 2.0, float("-inf"), 3.0, float("nan"), 0.0])
    check(lambda x: (x.cumsum(0), x.cummax(0), x.cummin(0), x.logcumsumexp(0)), x)


@pytest.mark.parametrize("kind", ["cumsum", "cummax"])
def test_blocks_of_a_long_row(kind):
    with heuristics.override(scan_limit=16, scan_block=8, lanes=4, chunk=2):
        check(lambda x: KINDS[kind](x, 1), torch.randn(3, 203))


def test_a_million_floats_are_summed_as_exactly_as_by_the_cpu():
    check(lambda x: x.cumsum(0), torch.randn(1_000_000))


def test_pointwise_work_around_a_scan_and_two_scans_are_one_kernel():
    x = torch.randn(5, 200)
    for f in (lambda x: (x.relu() * 2).cumsum(1).exp() + x, lambda x: x.cummax(1), lambda x: x.softmax(1).cumsum(1)):
        x = x / 100
        check(f, x)
        assert dispatches(compiled(f), *on_device([x])) == 1


def test_dynamic_lengths():
    f = compiled(lambda x: x.cumsum(1), dynamic=True)
    for n in (128, 127, 3, 9000, 128):
        x = torch.randn(2, n)
        torch.testing.assert_close(f(x.to("vulkan")).cpu(), x.cumsum(1))


def test_backward():
    x = torch.rand(4, 50)
    grads = []
    for device in ("cpu", "vulkan"):
        leaf = x.detach().clone().to(device).requires_grad_()

        def f(x):
            return x.cumsum(1).sin() + x.logcumsumexp(1) + x.cummax(1)[0]

        (compiled(f) if device == "vulkan" else f)(leaf).sum().backward()
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])
