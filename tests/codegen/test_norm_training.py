"""Batch, instance and group normalisation in training and evaluation, compiled and eager, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, on_device, same

import vkinductor

aten = torch.ops.aten


def batch(training: bool) -> Callable[..., Any]:
    def f(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        return F.batch_norm(x, mean, var, w, b, training=training, momentum=0.3)

    return f


def run(f: Callable[..., Any], args: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result, the running statistics after it, and the gradients."""
    result = f(*args)
    weights = torch.linspace(-1, 1, result.numel()).view(result.shape).to(result.dtype)
    result.backward(weights.to(result.device))
    return [result.detach(), *args[3:], *[t.grad for t in args[:3]]]


def arguments(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    channels = shape[1]
    x, w, b = torch.randn(shape), torch.rand(channels) + 0.5, torch.randn(channels)
    leaves = [t.to(dtype).requires_grad_() for t in (x, w, b)]
    return [*leaves, torch.randn(channels).to(dtype), torch.rand(channels).to(dtype) + 0.5]


@pytest.mark.parametrize("how", [compiled, lambda f: f], ids=["compiled", "eager"])
@pytest.mark.parametrize("training", [True, False])
def test_batch(training: bool, how: Callable[..., Any]) -> None:
    for shape in ((5, 3), (2, 3, 7), (2, 3, 5, 9)):
        args = arguments(shape)
        device = on_device(args)
        vkinductor.reset_stats()
        got = run(how(batch(training)), device)
        assert not vkinductor.stats()["fallbacks"]
        same(got, run(batch(training), args), rtol=1e-4, atol=1e-4)


def test_half() -> None:
    args = arguments((4, 3, 5, 9), torch.float16)
    same(run(batch(True), on_device(args)), run(batch(True), args), rtol=1e-2, atol=1e-2)


def test_what_is_saved() -> None:
    """Empty outside of training, as on the CPU."""
    x, *rest = (t.detach() for t in arguments((2, 3, 5)))
    for training in (True, False):
        call = (training, 0.1, 1e-5)
        want = aten.native_batch_norm.default(x, *(t.clone() for t in rest), *call)
        same(aten.native_batch_norm.default(*on_device([x, *rest]), *call), want, rtol=1e-4, atol=1e-4)


def test_instance_and_group() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return F.instance_norm(x, weight=w, bias=b) + F.group_norm(x, 2, w, b)

    args = [t.requires_grad_() for t in (torch.randn(2, 4, 5, 7), torch.randn(4), torch.randn(4))]
    device = on_device(args)
    vkinductor.reset_stats()
    got = run(f, device)
    assert not vkinductor.stats()["fallbacks"]
    same(got, run(f, args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_eager_group_norm_rounds_once(dtype):
    """torch would compose it of a batch norm in half precision, scaled and shifted after rounding."""
    x, weight, bias = torch.randn(4, 6, 9).mul(4).to(dtype), torch.randn(6).mul(8).to(dtype), torch.randn(6).to(dtype)
    exact = torch.nn.functional.group_norm(x.double(), 2, weight.double(), bias.double())
    vkinductor.reset_stats()
    got = torch.nn.functional.group_norm(x.to("vulkan"), 2, weight.to("vulkan"), bias.to("vulkan")).cpu()
    assert vkinductor.stats()["fallbacks"] == {}
    torch.testing.assert_close(got.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-5)
