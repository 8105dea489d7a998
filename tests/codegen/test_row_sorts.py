"""Sorts inside row kernels against the CPU's stable sort: dtypes, lengths, layouts, what fuses."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from compiled import DTYPES, check, compiled, dispatches, name_of, on_device

from vkinductor.codegen import heuristics
from vkinductor.runtime import context

NAN, INF = float("nan"), float("inf")
# What the heuristics choose; by a network and by counting, of few lanes and of many.
LAYOUTS = ({}, {"ranked_row": 0}, {"ranked_row": 0, "lanes": 16, "rows": 2}, {"ranked_row": 512, "lanes": 64})


@pytest.fixture(params=["cpu", "discrete"])
def kind(request, monkeypatch):
    """Layouts of a CPU driver and of a GPU, on any device."""
    device = context.get()
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, kind=request.param))
    return request.param


def _sort(dim=-1, descending=False):
    return lambda x: torch.sort(x, stable=True, dim=dim, descending=descending)


def _of(dtype, *size):
    """Values of ``dtype`` with ties, and everything special that it has."""
    x = torch.randint(0, 9, size).to(dtype)
    if dtype.is_floating_point:
        x[:, ::7], x[:, ::11], x[:, ::13], x[:, ::17], x[:, 5:7] = NAN, -INF, -0.0, INF, -3.5
    elif dtype == torch.uint64:
        x.view(torch.int64)[:, ::7] = -1  # the largest
    elif dtype != torch.bool:
        x[:, ::7], x[:, ::11] = torch.iinfo(dtype).max, torch.iinfo(dtype).min
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("ranked_row", [0, 512])
def test_dtypes(ranked_row, descending):
    with heuristics.override(ranked_row=ranked_row):
        check(lambda *xs: [_sort(1, descending)(x) for x in xs], *[_of(dtype, 3, 40) for dtype in DTYPES])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_lengths(layout, kind):
    xs = [torch.randn(3, n).round(decimals=1) for n in (2, 3, 5, 7, 8, 9, 31, 33, 64, 129, 255, 300, 512)]

    def f(*xs):
        return [_sort(1, x.shape[1] % 2 == 0)(x) for x in xs]

    with heuristics.override(**layout):
        check(f, *xs, dynamic=False)
        assert dispatches(compiled(f, dynamic=False), *on_device(xs)) == len(xs)


def test_numbers_of_rows(kind):
    xs = [torch.randn(rows, 10).round(decimals=1) for rows in (1, 2, 63, 64, 65, 1000)]
    check(lambda *xs: [_sort(1)(x) for x in xs], *xs, dynamic=False)


def test_a_longer_row_is_left_to_templates():
    check(_sort(1), torch.randn(2, 513), dynamic=False)


def test_no_row_and_rows_of_nothing():
    check(_sort(1), torch.randn(3, 0))
    check(_sort(1), torch.randn(0, 5))
    check(_sort(0), torch.tensor(3.0))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dimension_of_any_strides(dim, kind):
    check(_sort(dim), torch.randint(0, 9, (7, 40, 5)).transpose(0, 2)[:, ::2])
    check(_sort(dim), torch.randn(3, 1, 4).expand(3, 6, 4))


def _reduced(x):
    values, places = x.sort(dim=1, stable=True)
    weighted = values * torch.arange(x.shape[1], device=x.device)
    return weighted.sum(1) / places.sum(1), values.amax(1) + places.float().std(1)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: [(t * 2).float().sin() for t in torch.sort(x.relu() - x * 3, dim=1, stable=True)],
        lambda x: torch.sort(x, dim=1, stable=True)[1],
        lambda x: torch.sort(x, dim=1, stable=True)[0] + x,
        lambda x: x.softmax(1).sort(dim=1, stable=True),
        lambda x: torch.sort(x, dim=1, stable=True)[0].softmax(1),
        _reduced,
        lambda x: (x.sort(dim=1, stable=True), (-x).abs().sort(dim=1, stable=True, descending=True)),
        lambda x: x.sort(dim=1, stable=True)[0].sin().sort(dim=1, stable=True),
        lambda x: torch.sort(x + x.mean(1, keepdim=True), dim=1, stable=True),
    ],
    ids=["around", "positions", "twice", "after", "before", "reduced", "two", "chained", "mean"],
)
def test_what_is_around_a_sort_is_in_its_kernel(f, kind):
    x = torch.randn(70, 50).round(decimals=1)
    check(f, x, dynamic=False)
    assert dispatches(compiled(f, dynamic=False), *on_device([x])) == 1


def test_sorts_of_two_types_and_scans_of_what_is_sorted():
    x = torch.randn(5, 50).round(decimals=1)
    check(lambda x: (x.sort(dim=1, stable=True), x.double().mul(1e9).long().sort(dim=1, stable=True)), x)
    check(lambda x: x.sort(dim=1, stable=True)[0].cumsum(1), x)
    check(lambda x: x.cumsum(1).sort(dim=1, stable=True), x.mul(10).long())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_halves_that_are_equal_when_rounded_keep_their_order(dtype):
    x = torch.linspace(1, 1.01, 60)[None].flip(1)
    check(lambda x: torch.sort(x.to(dtype), dim=1, stable=True), x)


def test_a_row_that_is_written_where_it_was_read():
    def f(x):
        y = x * 2
        y.copy_(y.sort(dim=1, stable=True)[0])
        return y

    check(f, torch.randn(9, 40))


def test_scattered_by_a_kernel_that_sorts():
    def f(x):
        places = torch.sort(x, dim=1, stable=True)[1]
        counts = torch.zeros(x.shape[1], dtype=torch.int32, device=x.device)
        return counts.scatter_add(0, places.flatten() // 2, torch.ones_like(places.flatten(), dtype=torch.int32))

    check(f, torch.randn(12, 30))


def test_rows_of_varying_number_and_length():
    f = compiled(lambda x: x.sort(dim=1, stable=True), dynamic=True)
    for rows, length in ((3, 40), (5, 40), (2, 700)):
        x = torch.randn(rows, length)
        for got, want in zip(f(x.to("vulkan")), x.sort(dim=1, stable=True), strict=True):
            torch.testing.assert_close(got.cpu(), want)

    def g(x):
        torch._dynamo.mark_static(x, 1)
        return x

    h = compiled(lambda x: x.sort(dim=1, stable=True)[0] * 2)
    for rows in (3, 5):
        x = g(torch.randn(rows, 40).to("vulkan"))
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(h(x).cpu(), x.cpu().sort(dim=1, stable=True)[0] * 2)
        assert dispatches(h, x) == 1


def test_backward():
    grads = []
    x = torch.randn(4, 30)
    for device in ("cpu", "vulkan"):
        leaf = x.detach().clone().to(device).requires_grad_()
        f = lambda x: torch.sort(x.exp(), 1)[0][:, :9].square() + x.topk(9, 1)[0]  # noqa: E731
        (compiled(f) if device == "vulkan" else f)(leaf).sum().backward()
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])
