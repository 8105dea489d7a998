"""Lowerings of ours around Inductor's: where its own differ from torch or leave the operator to the CPU."""

from __future__ import annotations

import pytest
import torch

import vkinductor
from vkinductor.codegen import online_softmax


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_powers_of_integers(dtype):
    base = torch.tensor([[0, 1, 2, 3], [5, 7, 1, 2]]).to(dtype)
    exponent = torch.tensor([0, 3, 7, 5]).to(dtype)
    vkinductor.reset_stats()
    for f in (torch.pow, lambda x, y: torch.pow(3, y), lambda x, y: x.pow(33), lambda x, y: torch.pow(x.int(), y)):
        on_device = (base.to("vulkan"), exponent.to("vulkan"))
        assert torch.equal(f(*on_device).cpu(), f(base, exponent))
        torch._dynamo.reset()
        assert torch.equal(torch.compile(f, backend="vulkan")(*on_device).cpu(), f(base, exponent))
    assert vkinductor.stats()["fallbacks"] == {}


@pytest.mark.parametrize("dim", [None, 0])
def test_any_of_uint8_is_uint8(dim):
    x = torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8)
    f = (lambda x: x.any()) if dim is None else (lambda x: x.any(dim))
    got = torch.compile(f, backend="vulkan")(x.to("vulkan"))
    assert got.dtype == torch.uint8
    assert torch.equal(got.cpu(), f(x))


def test_softmax_of_a_scalar_where_reads_dominate(monkeypatch):
    monkeypatch.setattr(online_softmax, "device_reads_dominate", lambda: True)
    with torch._inductor.config.patch(force_disable_caches=True):
        got = torch.compile(lambda x: torch.softmax(x, 0), backend="vulkan")(torch.tensor(3.0).to("vulkan"))
    assert got.item() == 1.0


def test_products_with_a_bias_are_one_eager_kernel():
    bias, x, w = (t.to("vulkan") for t in (torch.randn(5), torch.randn(3, 7), torch.randn(7, 5)))
    for f in (lambda: torch.addmm(bias, x, w), lambda: torch.baddbmm(bias, x[None], w[None])):
        f()
        vkinductor.synchronize()
        vkinductor.reset_stats()
        f()
        vkinductor.synchronize()
        assert vkinductor.stats()["dispatches"] == 1


def test_a_fallback_has_the_strides_that_torch_promises():
    x = torch.randn(2, 3, 4).permute(2, 0, 1)
    f = torch.compile(lambda x: torch.fft.rfft(x, dim=1).abs(), backend="vulkan")
    torch.testing.assert_close(f(x.to("vulkan")).cpu(), torch.fft.rfft(x, dim=1).abs())


def test_a_decomposition_that_declines_leaves_the_call_to_torch():
    x, index, source = torch.zeros(3, 4), torch.tensor([[0, 2, 1, 1], [1, 1, 0, 2]]), torch.randn(2, 4)
    got = torch.scatter_reduce(x.to("vulkan"), 0, index.to("vulkan"), source.to("vulkan"), "amax")
    torch.testing.assert_close(got.cpu(), torch.scatter_reduce(x, 0, index, source, "amax"))
