"""Compiling for tensors that already live on the device, with backend="vulkan" and with Inductor's own name."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
from torch import nn

import vkinductor


@pytest.fixture(params=["vulkan", "inductor"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def test_forward_and_training(backend: str) -> None:
    host = module()
    device = copy.deepcopy(host).to("vulkan")
    compiled = torch.compile(device, backend=backend, fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (host, device)]
    for _ in range(3):
        x = torch.randn(5, 8)
        losses = [host(x).square().mean(), compiled(x.to("vulkan")).square().mean()]
        assert losses[1].device.type == "vulkan"
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-4)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for mine, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


def test_nothing_crosses(backend: str) -> None:
    compiled = torch.compile(module().to("vulkan"), backend=backend, fullgraph=True)
    x = torch.randn(5, 8, device="vulkan")
    compiled(x)
    vkinductor.reset_stats()
    y = compiled(x)
    stats = vkinductor.stats()
    assert (stats["h2d_bytes"], stats["d2h_bytes"], stats["fallbacks"]) == (0, 0, {})
    assert y.device.type == "vulkan"


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_inductor_itself(mode: str) -> None:
    x = torch.randn(5, 8, device="vulkan")
    m = module().to("vulkan")
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(m, mode=mode)(x), m(x), atol=1e-5, rtol=1e-4)


def test_kinds_of_call(backend: str) -> None:
    def f(x: torch.Tensor, cache: torch.Tensor, n: int, scale: float) -> Any:
        cache[:, n : n + 2] = x[:, :2] * scale
        y = x + torch.arange(x.shape[1], device=x.device)
        return y, y.t(), cache[0], x

    x, cache = torch.randn(3, 4), torch.zeros(3, 8)
    x_device, cache_device = x.to("vulkan"), cache.to("vulkan")
    compiled = torch.compile(f, backend=backend, fullgraph=True)
    for n, scale in ((0, 0.5), (2, 0.25), (3, 2.5)):
        expected = f(x, cache, n, scale)
        actual = compiled(x_device, cache_device, n, scale)
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), e)
        torch.testing.assert_close(cache_device.cpu(), cache)
        assert actual[3] is x_device
        assert actual[1].untyped_storage().data_ptr() == actual[0].untyped_storage().data_ptr()


def test_dynamic_shapes_compile_once() -> None:
    compiled = torch.compile(lambda x: (x * 2 + 1).softmax(-1), backend="vulkan", dynamic=True, fullgraph=True)
    torch._dynamo.utils.counters.clear()
    for n in range(2, 12):
        x = torch.randn(n, 5)
        torch.testing.assert_close(compiled(x.to("vulkan")).cpu(), (x * 2 + 1).softmax(-1))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="CPU Inductor needs a C++ compiler")
def test_cpu_inductor_is_as_before() -> None:
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(4, 8)
    torch.compile(lambda x: x + 1, backend="vulkan")(x)  # everything of ours is registered
    f = torch.compile(lambda x, w: torch.mm(x, w).relu() + 1)
    result, code = run_and_get_code(f, x, x.t())
    torch.testing.assert_close(result, torch.mm(x, x.t()).relu() + 1)
    assert "cpp_fused" in code[0]
    assert "vulkan" not in code[0]
