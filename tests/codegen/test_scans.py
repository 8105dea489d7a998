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
    if dtype.is_floating_point:
        check(lambda x: (x.logcumsumexp(1), x[0, 0].logcumsumexp(0)), x)


@pytest.mark.parametrize("length", [0, 1, 2, 31, 32, 33])
def test_short_rows(length):
    check(lambda x: (x.cumsum(1), x.cummax(1)), torch.randn(3, length))


def test_nan_and_infinity():
    x = torch.tensor([1.0, float("inf"), 2.0, float("-inf"), 3.0, float("nan"), 0.0])
    check(lambda x: (x.cumsum(0), x.cummax(0), x.cummin(0), x.logcumsumexp(0)), x)
    check(lambda x: x.logcumsumexp(1), torch.stack((x, x.flip(0), torch.full((7,), float("-inf")), -x)))


@pytest.mark.parametrize("kind", ["cumsum", "cummax", "logcumsumexp"])
def test_blocks_of_a_long_row(kind):
    with heuristics.override(scan_limit=16, scan_block=8, lanes=4, chunk=2):
        check(lambda x: KINDS[kind](x, 1), torch.randn(3, 203))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_blocks_round_half_precision_once(dtype):
    """Blocks' parts and totals in the results' dtype would round several times."""
    x = (1 + torch.randn(3, 203) / 64).to(dtype)
    with heuristics.override(scan_limit=16, scan_block=8, lanes=4, chunk=2):
        products, sums = (t.cpu() for t in compiled(lambda x: (x.cumprod(1), x.cumsum(1)))(x.to("vulkan")))
    for got, exact in ((products, x.double().cumprod(1)), (sums, x.double().cumsum(1))):
        assert ((got.double() - exact) / exact).abs().max() <= 1.001 * torch.finfo(dtype).eps / 2


def test_a_million_floats_are_summed_as_exactly_as_by_the_cpu():
    check(lambda x: x.cumsum(0), torch.randn(1_000_000))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_logarithms_of_running_sums_round_once(layout):
    """Near 10000 a float32 has steps of 1e-3: thousands of folded logarithms would be off by many of them."""
    large = torch.linspace(9990, 10000, 3000)
    for x in (large, large.flip(0), torch.zeros(3000), torch.cat((-large, large))):
        with heuristics.override(**layout):
            got = compiled(lambda x: x.logcumsumexp(0))(x.to("vulkan")).cpu()
        exact = x.double().logcumsumexp(0)
        assert ((got - exact).abs() / exact.abs().clamp(min=1)).max() < 1.5e-7


def test_the_backward_of_large_logarithms_is_as_near_as_the_cpus():
    x = torch.rand(60, 4) + 10000
    weights = torch.randn(60, 4)

    def gradient(f, x):
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(f(leaf), leaf, weights.to(x))[0].cpu().double()

    def f(x):
        return x.logcumsumexp(0)

    exact = gradient(f, x.double())
    theirs, ours = ((gradient(g, y) - exact).abs() for g, y in ((f, x), (compiled(f), x.to("vulkan"))))
    assert ours.max() <= 1.1 * theirs.max()
    assert ours.mean() <= 1.1 * theirs.mean()


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
