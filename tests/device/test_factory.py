"""Factories, `resize_` and `set_`."""

from __future__ import annotations

import pytest
import torch

from vkinductor.runtime import stats
from vkinductor.runtime.errors import UnsupportedError

DEVICE = "vulkan"


def test_filled() -> None:
    assert torch.zeros(2, 3, device=DEVICE).cpu().tolist() == [[0] * 3] * 2
    assert torch.ones(5, dtype=torch.int8, device=DEVICE).cpu().tolist() == [1] * 5
    assert torch.full((3,), 2.5, device=DEVICE).cpu().tolist() == [2.5] * 3
    assert torch.full((3,), 7, dtype=torch.int64, device=DEVICE).cpu().tolist() == [7] * 3
    assert torch.full((), True, device=DEVICE).item() is True
    assert torch.tensor([[1, 2], [3, 4]], device=DEVICE).cpu().tolist() == [[1, 2], [3, 4]]
    assert torch.zeros(0, device=DEVICE).cpu().tolist() == []


def test_like_and_new() -> None:
    base = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).to(DEVICE)
    assert base.is_contiguous(memory_format=torch.channels_last)
    assert torch.empty_like(base).stride() == base.stride()
    assert torch.zeros_like(base, dtype=torch.int32).sum().item() == 0
    assert base.new_full((2,), 3).cpu().tolist() == [3, 3]
    assert base.new_tensor([1.0]).device == base.device
    assert base.new_empty_strided((2, 2), (1, 2)).stride() == (1, 2)


def test_ranges_are_made_without_fallback() -> None:
    before = dict(stats.counters.fallbacks)
    assert torch.equal(torch.arange(10, device=DEVICE).cpu(), torch.arange(10))
    assert torch.equal(torch.arange(1, 2, 0.25, device=DEVICE).cpu(), torch.arange(1, 2, 0.25))
    assert torch.equal(torch.linspace(0, 1, 7, device=DEVICE).cpu(), torch.linspace(0, 1, 7))
    assert torch.equal(torch.logspace(0, 1, 3, device=DEVICE).cpu(), torch.logspace(0, 1, 3))
    assert torch.equal(torch.eye(3, device=DEVICE).cpu(), torch.eye(3))
    assert torch.equal(torch.eye(3, 2, device=DEVICE).cpu(), torch.eye(3, 2))
    assert torch.equal(torch.tril_indices(3, 3, device=DEVICE).cpu(), torch.tril_indices(3, 3))
    assert stats.counters.fallbacks == before


def test_memory_formats() -> None:
    assert torch.empty(2, 3, 4, 5, device=DEVICE, memory_format=torch.channels_last).stride() == (
        60,
        1,
        15,
        3,
    )
    assert torch.empty(1, 2, 3, 4, 5, device=DEVICE, memory_format=torch.channels_last_3d).stride() == (
        120, 1, 40, 10, 2,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="dimensions"):
        torch.empty(2, 3, device=DEVICE, memory_format=torch.channels_last)


def test_default_dtype_and_device_context() -> None:
    with torch.device(DEVICE):
        assert torch.zeros(2).is_vulkan
        assert torch.nn.Linear(2, 2).weight.is_vulkan
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.empty(2, device=DEVICE).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="vulkan:0"):
        torch.empty(2, device="vulkan:1")
    with pytest.raises(UnsupportedError, match="pin_memory"):
        torch.empty(2, device=DEVICE, pin_memory=True)


def test_resize() -> None:
    tensor = torch.arange(6.0).to(DEVICE)
    assert tensor.resize_(2, 2).cpu().tolist() == [[0, 1], [2, 3]]  # smaller: the same storage
    grown = tensor.resize_(3, 4)
    assert grown is tensor
    assert grown.cpu().flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert tensor.resize_(0).numel() == 0
    image = torch.empty(0, device=DEVICE).resize_((1, 2, 3, 4), memory_format=torch.channels_last)
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_set() -> None:
    source = torch.arange(12.0).to(DEVICE)
    target = torch.empty(0, device=DEVICE)
    target.set_(source.untyped_storage(), 2, (2, 3), (3, 1))
    assert target.cpu().tolist() == [[2, 3, 4], [5, 6, 7]]
    target[0, 0] = 99
    assert source[2].item() == 99
    target.set_(source)
    assert target.is_set_to(source)
    whole = torch.empty(0, device=DEVICE).set_(source.untyped_storage())
    assert whole.shape == (12,)
    assert whole.set_().numel() == 0
    source.data = torch.zeros(3, device=DEVICE)
    assert source.shape == (3,)


def test_out_arguments() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    out = torch.empty(0, device=DEVICE)
    assert torch.add(a.to(DEVICE), b.to(DEVICE), out=out) is out
    assert torch.equal(out.cpu(), a + b)
    into = torch.zeros(8, 3, device=DEVICE)
    torch.mul(a.to(DEVICE).t(), 2, out=into[2:6])
    assert torch.equal(into[2:6].cpu(), a.t() * 2)
    assert into[:2].cpu().abs().sum() == 0


def test_record_stream() -> None:
    torch.ones(2, device=DEVICE).record_stream(torch.vulkan.current_stream())
