"""Distinct values of tensors on the device, against the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch


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
