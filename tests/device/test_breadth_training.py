"""Optimizers, gradient clipping and scaling, checkpointing and autocast on the device, compared with the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vkinductor

OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01}),
]
WAYS = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}]


@pytest.fixture(autouse=True)
def without_compiler() -> None:
    """Here operators are compiled, as they are for users."""


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def batch() -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def same_parameters(device_model: nn.Module, host_model: nn.Module) -> None:
    for (name, mine), theirs in zip(device_model.named_parameters(), host_model.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), msg=lambda m, n=name: f"{n}: {m}")


def train(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: next(iter(way)) + str(next(iter(way.values()))))
@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", ""))
def test_optimizer(kind: Any, options: dict[str, Any], way: dict[str, bool]) -> None:
    if "capturable" in way and kind is torch.optim.SGD:
        pytest.skip("SGD has no capturable=")
    host = model()
    mine = copy.deepcopy(host).to("vulkan")
    vkinductor.reset_stats()
    train(mine, batch().to("vulkan"), kind(mine.parameters(), **options, **way))
    assert vkinductor.stats()["fallbacks"] == {}
    train(host, batch(), kind(host.parameters(), **options))
    same_parameters(mine, host)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_fused_with_a_tensor_as_rate(kind: Any) -> None:
    host = model()
    mine = copy.deepcopy(host).to("vulkan")
    options = {"maximize": True, "weight_decay": 0.1}
    rate = torch.tensor(0.02)
    if kind is torch.optim.Adagrad:  # fused for the CPU alone
        rule, sums = torch._fused_adagrad_, [torch.full_like(p, 0.5) for p in mine.parameters()]
        mine(batch().to("vulkan")).square().mean().backward()
        params = list(mine.parameters())
        steps = [torch.ones((), device="vulkan") for _ in params]
        vkinductor.reset_stats()
        with torch.no_grad():
            rule(
                params, [p.grad for p in params], sums, steps,
                lr=0.02, lr_decay=0.3, weight_decay=0.1, eps=1e-10, maximize=True,
            )  # fmt: skip
        assert vkinductor.stats()["fallbacks"] == {}
        options["initial_accumulator_value"], options["lr_decay"] = 0.5, 0.3
        train(host, batch(), kind(host.parameters(), lr=0.02, **options), steps=1)
    else:
        vkinductor.reset_stats()
        train(mine, batch().to("vulkan"), kind(mine.parameters(), lr=rate.to("vulkan"), fused=True, **options))
        assert vkinductor.stats()["fallbacks"] == {}
        train(host, batch(), kind(host.parameters(), lr=0.02, **options))
    same_parameters(mine, host)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("foreach", [None, False, True])
def test_clipped_gradients(norm_type: float, foreach: bool | None) -> None:
    host = model()
    mine = copy.deepcopy(host).to("vulkan")
    vkinductor.reset_stats()
    for net, x in ((host, batch()), (mine, batch().to("vulkan"))):
        (net(x).square().sum() * 10).backward()
    totals = [nn.utils.clip_grad_norm_(net.parameters(), 0.5, norm_type, foreach=foreach) for net in (mine, host)]
    assert vkinductor.stats()["fallbacks"] == {}
    torch.testing.assert_close(totals[0].cpu(), totals[1])
    for a, b in zip(mine.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler(fused: bool) -> None:
    """A step whose gradients overflow is skipped and the scale halved; the others are steps of the unscaled loss."""
    host = model()
    mine = copy.deepcopy(host).to("vulkan")
    scaler = torch.amp.GradScaler("vulkan", init_scale=1024.0, growth_interval=2)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=0.01, fused=fused)
    vkinductor.reset_stats()
    for bad in (False, True, False):
        optimizer.zero_grad()
        loss = mine(batch().to("vulkan")).square().mean() * (float("inf") if bad else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0
    assert vkinductor.stats()["fallbacks"] == {}
    train(host, batch(), torch.optim.AdamW(host.parameters(), lr=0.01), steps=2)
    same_parameters(mine, host)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool, compiled: bool) -> None:
    if compiled and reentrant:
        pytest.skip("Dynamo traces checkpoint(use_reentrant=False) only")
    host = model()
    mine = copy.deepcopy(host).to("vulkan")

    def run(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(net, x, use_reentrant=reentrant).square().mean()

    x = batch().requires_grad_()
    y = batch().to("vulkan").requires_grad_()
    vkinductor.reset_stats()
    run(host, x).backward()
    step = torch.compile(run, backend="vulkan", fullgraph=True) if compiled else run
    step(mine, y).backward()
    assert vkinductor.stats()["fallbacks"] == {}
    torch.testing.assert_close(y.grad.cpu(), x.grad)
    for a, b in zip(mine.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision(dtype: torch.dtype, compiled: bool) -> None:
    """Against float32: a product of half operands is as exact as its operands."""
    host = model()
    mine = copy.deepcopy(host).to("vulkan")

    def run(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("vulkan", dtype=dtype):
            return net(x)

    vkinductor.reset_stats()
    step = torch.compile(run, backend="vulkan", fullgraph=True) if compiled else run
    result = step(mine, batch().to("vulkan"))
    result.float().square().mean().backward()
    assert vkinductor.stats()["fallbacks"] == {}
    assert result.dtype == dtype
    expected = host(batch())
    expected.square().mean().backward()
    tolerance = {"rtol": 0.02, "atol": 0.02} if dtype == torch.float16 else {"rtol": 0.06, "atol": 0.06}
    torch.testing.assert_close(result.float().cpu(), expected, **tolerance)
    for a, b in zip(mine.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, **tolerance)
