"""Scatters and indexed writes with every reduction and dtype: compiled and as eager operators, without fallbacks."""

from __future__ import annotations

import pytest
import torch
from compiled import check, compiled, name_of, on_device, same

import vkinductor

REDUCTIONS = ("sum", "prod", "amax", "amin", "mean")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def arguments(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(target [5, 4], indices [7, 4], source [7, 4])"""
    return (torch.rand(5, 4) * 5).to(dtype), torch.randint(0, 5, (7, 4)), (torch.rand(7, 4) * 5).to(dtype)


def both(f, *args, **options) -> None:
    """Compiled and eager give what the CPU gives, on the device."""
    vkinductor.reset_stats()
    check(f, *args, **options)
    same(f(*on_device(args)), f(*args))
    assert not vkinductor.stats()["fallbacks"]


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_reductions(dtype):
    reductions = ("amax", "amin") if dtype == torch.bool else REDUCTIONS
    own = (True, False) if dtype == torch.float32 else (False,)

    def f(x, index, source):
        return [x.scatter_reduce(0, index, source, r, include_self=s) for r in reductions for s in own]

    both(f, *arguments(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16], ids=name_of)
def test_indices_of_one_dimension(dtype):
    def f(x, index, source):
        index = index[:, 0]
        reduced = [x.index_reduce(0, index, source, r, include_self=False) for r in ("prod", "amax", "amin", "mean")]
        return (
            *reduced,
            x.index_add(0, index, source),
            x.index_put((index,), source, accumulate=True),
            x.take(index),
            x.put(index, source[:, 0], accumulate=True),
        )

    both(f, *arguments(dtype))


ADDITIONS = {
    "scatter_add": lambda x, i, s: x.scatter_add(0, i, s),
    "scatter_add_": lambda x, i, s: x.clone().scatter_add_(0, i, s),
    "scatter, add": lambda x, i, s: x.scatter(0, i, s, reduce="add"),
    "scatter of a number": lambda x, i, s: x.scatter(0, i, 0.1, reduce="add"),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i, s, "sum", include_self=False),
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "index_put_": lambda x, i, s: x.clone().index_put_((i,), s, accumulate=True),
    "put": lambda x, i, s: x.put(i, s, accumulate=True),
    "gradient of an index": lambda x, i, s: torch.ops.aten._unsafe_index_put(x, (i,), s, True),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_half_precision_sums_round_once(dtype):
    """10000 additions of 0.1 at one place: where each rounds, float16 stops at 256 and bfloat16 at 32."""
    index = torch.zeros(10_000, dtype=torch.int64)
    x, source = torch.zeros(3).to(dtype), torch.full((10_000,), 0.1).to(dtype)
    expected = source.double().sum().to(dtype)
    args = on_device((x, index, source))
    vkinductor.reset_stats()

    def additions(x, index, source):
        return [f(x, index, source) for f in ADDITIONS.values()]

    results = [*additions(*args), *compiled(additions)(*args)]
    for name, result in zip([*ADDITIONS, *ADDITIONS], results, strict=True):
        torch.testing.assert_close(result[0].cpu(), expected, rtol=torch.finfo(dtype).eps, atol=0, msg=name)
        assert result.dtype == dtype
        assert result[1] == 0
    assert not vkinductor.stats()["fallbacks"]


def test_numbers_and_products():
    def f(x, index, source):
        return x.scatter(0, index, 2.0, reduce="multiply"), x.scatter(1, index[:5] % 4, source[:5], reduce="add")

    both(f, *arguments(torch.float32))


def test_dynamic_strided_and_in_place():
    def f(x, index, source):
        y = x.clone()
        y.t().scatter_reduce_(1, index.t(), source.t(), "amax")
        return y + 1

    for rows in (5, 9):
        check(f, torch.randn(rows, 4), torch.randint(0, 5, (7, 4)), torch.randn(7, 4), dynamic=True)


def test_nan_and_scalars():
    x = torch.tensor([1.0, 2.0, 3.0])
    source, index = torch.tensor([float("nan"), 5.0, -1.0]), torch.tensor([0, 1, 1])
    both(lambda x, i, s: (x.scatter_reduce(0, i, s, "amax"), x.scatter_reduce(0, i, s, "amin")), x, index, source)
    zero = torch.tensor(0)
    both(lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), torch.tensor(3.0), zero, torch.tensor(2.0))


def test_no_indices():
    x, index = torch.randn(3), torch.zeros(0, dtype=torch.int64)
    both(lambda x, i, s: x.scatter_reduce(0, i, s, "amax", include_self=False), x, index, torch.randn(0))


def test_gradients():
    index, source = torch.tensor([0, 2, 2, 1]), torch.randn(4)

    def gradients(x, index, source):
        x, source = x.detach().requires_grad_(), source.detach().requires_grad_()
        y = x.scatter_reduce(0, index, source, "amax").sum() + x.scatter_reduce(0, index, source, "mean").sum()
        return torch.autograd.grad(y, (x, source))

    args = (torch.randn(3), index, source)
    same(gradients(*on_device(args)), gradients(*args))


def test_deterministic_algorithms_use_the_cpu():
    args = (torch.zeros(2), torch.tensor([0, 0, 1]), torch.rand(3))
    both(lambda x, i, s: x.scatter_add(0, i, s), *args)
    torch.use_deterministic_algorithms(True)
    try:
        check(lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), *args)
        for dtype in (torch.float32, torch.float16):
            x, index, source = on_device(args)
            vkinductor.reset_stats()
            x.to(dtype).scatter_add(0, index, source.to(dtype))
            assert sum(vkinductor.stats()["fallbacks"].values()) == 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_histc():
    x = torch.randn(60)
    both(lambda x: (torch.histc(x, 7), torch.histc(x, 5, -1, 1), torch.histc(torch.ones_like(x), 4)), x)


def test_moments_of_nothing():
    def f(x):
        return [*torch.var_mean(x), *torch.var_mean(x, dim=1), *torch.std_mean(x, dim=1, keepdim=True)]

    both(f, torch.randn(3, 0))
    both(lambda x: torch.var_mean(x, dim=0), torch.randn(3, 0))


def test_angle_and_view_copy():
    values = torch.tensor([1.0, -1.0, 0.0, -0.0, float("nan"), float("-inf")])
    both(lambda x: (x.angle(), x.half().angle(), (x > 0).to(torch.int32).angle()), values)
    gaps = torch.randn(250).as_strided((5, 5, 5), (2, 10, 50))
    both(lambda x: (torch.view_copy(x, (5, 5, 5)), torch.view_copy(x, (25, 5))), gaps)


def test_clamp_between_zero_and_a_number_that_varies():
    x = torch.arange(9)
    for high in (3, 4, 5):
        same(x.to("vulkan").clamp(0, high), x.clamp(0, high))


def test_a_copy_to_the_cpu_that_need_not_block():
    check(lambda x: (x * 2).to("cpu", non_blocking=True), torch.arange(5.0))
