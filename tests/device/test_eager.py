"""The order of attempts, checks of devices, and operators torch renames on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vkinductor.device import hooks
from vkinductor.device.registry import registry
from vkinductor.runtime import stats

DEVICE = "vulkan"


def test_two_devices() -> None:
    a, b = torch.ones(2, 2, device=DEVICE), torch.ones(2, 2)
    for call in (lambda: a + b, lambda: a @ b, lambda: b @ a, lambda: torch.cat([a, b]), lambda: a.add_(b)):
        with pytest.raises(RuntimeError, match=r"same device.*(vulkan.*cpu|cpu.*vulkan)"):
            call()
    with pytest.raises(RuntimeError, match=r"Argument 'mask' of aten.masked_fill"):
        a.masked_fill(b > 0, 1.0)


def test_host_scalars_and_indices_may_mix() -> None:
    a = torch.arange(6.0).to(DEVICE).view(2, 3)
    assert (a + torch.tensor(1.0)).sum().item() == 21
    assert (torch.tensor(2.0) * a).sum().item() == 30
    assert a[torch.tensor([1, 0])].cpu().tolist() == [[3, 4, 5], [0, 1, 2]]
    a[torch.tensor([0])] = 7
    assert a[0].cpu().tolist() == [7, 7, 7]
    assert torch.where(a > 5, a, torch.tensor(0.0)).sum().item() == 21


def test_convolution() -> None:
    x, w, b = torch.randn(2, 4, 8, 8), torch.randn(6, 2, 3, 3), torch.randn(6)
    for options in ({"padding": 1, "groups": 2}, {"stride": 2, "groups": 2, "dilation": 2}):
        tensors = [t.clone().requires_grad_() for t in (x, w, b)]
        devices = [t.to(DEVICE).requires_grad_() for t in (x, w, b)]
        out, on_device = F.conv2d(*tensors, **options), F.conv2d(*devices, **options)
        assert torch.allclose(on_device.cpu(), out, atol=1e-5)
        out.square().sum().backward()
        on_device.square().sum().backward()
        for t, d in zip(tensors, devices, strict=False):
            assert torch.allclose(d.grad.cpu(), t.grad, rtol=1e-4, atol=1e-3)
    wt = torch.randn(4, 3, 3, 3)
    assert torch.allclose(
        F.conv_transpose2d(x.to(DEVICE), wt.to(DEVICE), stride=2).cpu(), F.conv_transpose2d(x, wt, stride=2), atol=1e-5
    )
    assert torch.allclose(
        F.conv1d(x[:, :, 0].to(DEVICE), w[:, :, 0].to(DEVICE).repeat(1, 2, 1)).cpu(),
        F.conv1d(x[:, :, 0], w[:, :, 0].repeat(1, 2, 1)),
        atol=1e-5,
    )


def test_attention() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.rand(5, 5) > 0.3}):
        on_device = {n: o.to(DEVICE) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
        result = F.scaled_dot_product_attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), **on_device)
        assert torch.allclose(
            result.cpu(), F.scaled_dot_product_attention(q, k, v, **options), atol=1e-5, equal_nan=True
        )


class Recorder:
    """A compile hook that answers for `aten.add.out` alone."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen.append(str(op))
        assert torch.ones(1, device=DEVICE).neg().item() == -1  # operators inside go to the fallback
        if str(op) != "aten.add.out":
            return NotImplemented
        out = kwargs["out"]
        return out.copy_(args[0].cpu() + args[1].cpu() + 100)


def test_hook_comes_first() -> None:
    recorder = Recorder()
    previous = hooks.set_compile_op(recorder)
    try:
        a = torch.ones(2, device=DEVICE)
        before = dict(stats.counters.fallbacks)
        assert (a + a).cpu().tolist() == [102, 102]
        assert "aten.add.out" not in {k for k, n in stats.counters.fallbacks.items() if n != before.get(k)}
        assert (a * a).cpu().tolist() == [1, 1]
        assert recorder.seen == ["aten.add.out", "aten.mul.out"]
    finally:
        hooks.set_compile_op(previous)


def test_hook_that_fails_is_not_hidden() -> None:
    def fails(op: Any, args: Any, kwargs: Any) -> Any:
        raise ValueError("broken")

    previous = hooks.set_compile_op(fails)
    try:
        with pytest.raises(ValueError, match="broken"):
            torch.ones(2, device=DEVICE).exp()
        with pytest.raises(ValueError, match="broken"):
            torch.ones(2, device=DEVICE).exp()
    finally:
        hooks.set_compile_op(previous)
    assert torch.zeros(2, device=DEVICE).exp().sum().item() == 2


def test_on_init() -> None:
    registry.open()
    calls: list[int] = []

    def callback() -> None:
        calls.append(1)

    hooks.add_on_init(callback)
    hooks.add_on_init(callback)
    try:
        assert calls == [1]
    finally:
        registry.on_init.remove(callback)
