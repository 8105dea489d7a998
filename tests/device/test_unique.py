"""Distinct values of tensors on the device, against the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch

import vkinductor
from vkinductor.device import unique


@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (5, 5), (5, 0, 5), (3, 4, 5)], ids=str)
def test_values_inverse_and_counts(function, shape):
    x = torch.randint(0, 3, shape).float()
    for inverse, counts, dim in itertools.product((False, True), (False, True), (None, 0, 1)):
        options = {"return_inverse": inverse, "return_counts": counts, "dim": dim}
        try:
            want = function(x, **options)
        except (RuntimeError, IndexError):
            continue
        got = function(x.to("vulkan"), **options)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for a, b in pairs:
            torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.int8, torch.int16], ids=str)
def test_slices_of_many_elements(dtype):
    low = -1 if dtype in (torch.float32, torch.int64, torch.int8, torch.int16) else 0
    x = torch.randint(low, 2, (40, 70)).to(dtype)
    x[:, :67] = x[0, :67]  # equal but for the last, and for one in the middle
    x[7:20, 31] = 1
    want = torch.unique(x, dim=0, return_inverse=True, return_counts=True)
    vkinductor.reset_stats()
    got = torch.unique(x.to("vulkan"), dim=0, return_inverse=True, return_counts=True)
    assert vkinductor.stats()["dispatches"] < 70
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.cpu(), b)


def test_lexicographic_order_has_nan_last_and_is_stable():
    nan = float("nan")
    rows = torch.tensor([[nan, 2.0], [1.0, nan], [nan, 1.0], [1.0, 3.0], [nan, 1.0], [-0.0, 5.0], [0.0, 4.0]])
    assert unique.lexicographic(rows.to("vulkan")).tolist() == [6, 5, 3, 1, 2, 4, 0]
