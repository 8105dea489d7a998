"""The pass over sums of one-hot rows, which gradients of losses by class are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import vkinductor
from vkinductor.codegen import passes

PATTERN = "sum of a one-hot row"


def replaced(matches: list[passes.Match]) -> int:
    return sum(match.pattern == PATTERN and not match.missed for match in matches)


def gradient(
    loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, target: Tensor, device: str, **options: Any
) -> Tensor:
    call = torch.compile(loss, backend="vulkan", fullgraph=True, **options) if device == "vulkan" else loss
    given = x.detach().clone().to(device).requires_grad_()
    result = call(given, target.to(device))
    result.backward(torch.linspace(0.5, 2.0, max(1, result.numel())).reshape(result.shape).to(result))
    assert given.grad is not None
    return given.grad.cpu()


def holds(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, target: Tensor, **options: Any) -> None:
    want = gradient(loss, x.float(), target, "cpu")
    tight = x.dtype == torch.float32
    got = gradient(loss, x, target, "vulkan", **options)
    torch.testing.assert_close(got.float(), want, rtol=1e-5 if tight else 2e-2, atol=1e-6 if tight else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradient_of_cross_entropy(reduction: str, dtype: torch.dtype, matches: list[passes.Match]) -> None:
    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x.float(), target, ignore_index=3, reduction=reduction)

    holds(loss, torch.randn(9, 50).to(dtype), torch.arange(9) * 5, dynamic=False)
    target = torch.tensor([3, 0, 49, 3])
    holds(loss, torch.randn(4, 50).to(dtype), target, dynamic=False)
    assert replaced(matches) == 2


def test_the_gradient_is_one_elementwise_kernel(matches: list[passes.Match]) -> None:
    loss = torch.compile(F.cross_entropy, backend="vulkan", dynamic=False)
    x, target = torch.randn(16, 40, device="vulkan", requires_grad=True), torch.arange(16, device="vulkan")
    result = loss(x, target)
    vkinductor.reset_stats()
    result.backward()
    assert vkinductor.stats()["dispatches"] == 1
    assert replaced(matches) == 1


@pytest.mark.parametrize("sizes", [(3, 7, 5), (2, 6, 4, 3)])
def test_classes_in_the_middle(sizes: tuple[int, ...], matches: list[passes.Match]) -> None:
    target = torch.randint(sizes[1], (sizes[0], *sizes[2:]))
    holds(F.cross_entropy, torch.randn(sizes), target, dynamic=False)
    assert replaced(matches) == 1


@pytest.mark.parametrize("more", [(), (4,), (4, 3)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_sizes_that_vary(reduction: str, more: tuple[int, ...], matches: list[passes.Match]) -> None:
    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction=reduction)

    for rows, classes in ((6, 11), (9, 20), (14, 13)):
        target = torch.randint(classes, (rows, *more))
        holds(loss, torch.randn(rows, classes, *more), target, dynamic=True)
    assert more or replaced(matches) >= 1


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, target: F.cross_entropy(x, target, torch.linspace(0.5, 2, x.shape[1], device=x.device)),
        lambda x, target: F.cross_entropy(x, target, label_smoothing=0.1),
    ],
    ids=["weights", "label smoothing"],
)
def test_what_is_no_single_element_stays_a_sum(loss: Any, matches: list[passes.Match]) -> None:
    holds(loss, torch.randn(8, 20), torch.arange(8), dynamic=False)
    assert replaced(matches) == 0


def one_hot(place: Tensor, factor: Tensor, first: int = 0, step: int = 1) -> Tensor:
    positions = torch.arange(first, first + 10 * step, step, device=place.device)
    row = torch.where(place[:, None] == positions, -2.0, 0.0)
    return (row * factor).sum(1, keepdim=True)


@pytest.mark.parametrize(("first", "step", "count"), [(0, 1, 1), (1, 1, 0), (0, 2, 0)])
def test_places_beyond_the_row(first: int, step: int, count: int, matches: list[passes.Match]) -> None:
    place, factor = torch.tensor([-1, 0, 4, 9, 10, 18, 1 << 40]), torch.randn(7, 1)
    want = one_hot(place, factor, first, step)
    call = torch.compile(one_hot, backend="vulkan", dynamic=False)
    got = call(place.to("vulkan"), factor.to("vulkan"), first, step)
    torch.testing.assert_close(got.cpu(), want)
    assert replaced(matches) == count


def test_places_between_positions(matches: list[passes.Match]) -> None:
    place, factor = torch.tensor([0.0, 0.5, 3.0, 8.25]), torch.randn(4, 1)
    got = torch.compile(one_hot, backend="vulkan", dynamic=False)(place.to("vulkan"), factor.to("vulkan"))
    torch.testing.assert_close(got.cpu(), one_hot(place, factor))
    assert replaced(matches) == 0


def test_zeros_of_the_row_count_where_the_factor_is_infinite(matches: list[passes.Match]) -> None:
    place, factor = torch.tensor([0, 4, -1, 9]), torch.tensor([[torch.inf], [-torch.inf], [torch.inf], [torch.nan]])
    got = torch.compile(one_hot, backend="vulkan", dynamic=False)(place.to("vulkan"), factor.to("vulkan"))
    torch.testing.assert_close(got.cpu(), one_hot(place, factor), equal_nan=True)
    assert replaced(matches) == 1


def test_a_factor_that_varies_along_the_row(matches: list[passes.Match]) -> None:
    place, factor = torch.arange(7), torch.randn(7, 10)
    got = torch.compile(one_hot, backend="vulkan", dynamic=False)(place.to("vulkan"), factor.to("vulkan"))
    torch.testing.assert_close(got.cpu(), one_hot(place, factor))
    assert replaced(matches) == 0
