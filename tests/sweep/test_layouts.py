"""Operands as they lie: the same values, nothing but NaN beside them, the same place on the device."""

from __future__ import annotations

import pytest
import torch

from vkinductor.sweep.layouts import CONTIGUOUS, LAYOUTS, to_device


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 3)], ids=str)
def test_layouts(shape, layout):
    x = torch.randn(shape)
    laid = LAYOUTS[layout](x)
    assert torch.equal(laid, x[..., :1, :].expand(shape) if layout == "expanded" else x)
    flat = torch.empty(0).set_(laid.untyped_storage())
    assert int(flat.isnan().logical_not().sum()) == (laid[..., 0, :] if layout == "expanded" else laid).numel() or (
        layout == "expanded"
    )
    if layout in CONTIGUOUS:
        assert 1 in laid.stride()[-2:]


def test_integers_and_bool_have_no_nan():
    for x in (torch.arange(6, dtype=torch.int8).view(2, 3), torch.tensor([[True, False]])):
        assert all(torch.equal(LAYOUTS[name](x), x) for name in LAYOUTS if name != "expanded")


def test_the_device_has_strides_offsets_and_aliases():
    base = torch.randn(4, 9)
    views = [base[1:, 2::3], base.t()[:3], torch.randn(2).requires_grad_(), None]
    moved = to_device(views)
    for mine, theirs in zip(moved[:3], views[:3], strict=True):
        assert mine.stride() == theirs.stride()
        assert mine.storage_offset() == theirs.storage_offset()
        assert mine.requires_grad == theirs.requires_grad
        assert torch.equal(mine.cpu(), theirs)
    assert moved[3] is None
    moved[0].zero_()
    assert float(moved[1].cpu()[2, 1]) == 0.0
