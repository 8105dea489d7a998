"""Operators that torch composes in a way of its own for each device."""

from __future__ import annotations

import pytest
import torch

DEVICE = "vulkan"


def test_split_at_positions_on_the_device() -> None:
    x = torch.arange(10.0, device=DEVICE, requires_grad=True)
    parts = torch.tensor_split(x, torch.tensor([2, 5], device=DEVICE))
    assert [p.tolist() for p in parts] == [p.tolist() for p in torch.tensor_split(torch.arange(10.0), (2, 5))]
    parts[1].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert len(torch.tensor_split(x, torch.tensor(3, device=DEVICE))) == 3


def test_pinned_memory() -> None:
    """Pinning is nothing here, and a copy that need not block is right when it is read."""
    x = torch.randn(3, 4)
    assert torch.equal(x.pin_memory().to(DEVICE, non_blocking=True).to("cpu", non_blocking=True), x)
    half = x.to(DEVICE).t().to(torch.float64, non_blocking=True)
    assert half.stride() == (1, 4)
    assert half.dtype == torch.float64
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    batches = [batch.to(DEVICE) for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)]
    assert torch.cat(batches).tolist() == list(range(6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_layer_norm_rounds_once(dtype: torch.dtype) -> None:
    """Nothing is rounded between normalisation, scale and bias; gradients come along."""
    x, weight, bias = torch.randn(7, 33), torch.randn(33) * 3, torch.randn(33) * 3
    args = [t.to(dtype).to(DEVICE).requires_grad_() for t in (x, weight, bias)]
    got = torch.nn.functional.layer_norm(args[0], (33,), *args[1:])
    exact = torch.nn.functional.layer_norm(args[0].cpu().double(), (33,), *(t.cpu().double() for t in args[1:]))
    assert got.dtype == dtype
    # Within one rounding of the result, and float32's own error.
    error = (got.cpu().double() - exact).abs()
    assert (error <= torch.finfo(dtype).eps / 2 * exact.abs() + 2e-6).all()
    got.sum().backward()
    assert all(t.grad is not None and t.grad.dtype == dtype for t in args)
