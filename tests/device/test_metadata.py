"""Views: they share memory with their base in both directions, and never touch data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda t: t.view(6, 4),
    "reshape": lambda t: t.reshape(2, 12),
    "t": lambda t: t[0].t(),
    "permute": lambda t: t.permute(2, 0, 1),
    "select": lambda t: t[1],
    "slice": lambda t: t[:, 1:3, ::2],
    "narrow": lambda t: t.narrow(1, 1, 2),
    "expand": lambda t: t[:, :1].expand(2, 5, 4),
    "unfold": lambda t: t.unfold(2, 2, 1),
    "diagonal": lambda t: t.diagonal(0, 1, 2),
    "as_strided": lambda t: t.as_strided((2, 2), (3, 1), 1),
    "squeeze": lambda t: t.unsqueeze(1).squeeze(1),
    "flatten": lambda t: t.flatten(1),
    "chunk": lambda t: t.chunk(2, 2)[1],
    "split": lambda t: t.split(2, 1)[0],
    "unbind": lambda t: t.unbind(1)[2],
    "movedim": lambda t: t.movedim(0, 2),
    "bits": lambda t: t.view(torch.int32),
    "detach": lambda t: t.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    host = torch.arange(24.0).view(2, 3, 4)
    device = host.to("vulkan")
    host_view, view = VIEWS[name](host), VIEWS[name](device)
    assert view.device == device.device
    assert view.shape == host_view.shape
    assert view.stride() == host_view.stride()
    assert view.storage_offset() == host_view.storage_offset()
    assert view.untyped_storage().data_ptr() == device.untyped_storage().data_ptr()
    assert torch.equal(view.cpu(), host_view)
    if name != "expand":
        host_view.fill_(7)
        view.fill_(7)
        assert torch.equal(device.cpu(), host)


def test_complex_views() -> None:
    host = torch.randn(3, 2, dtype=torch.complex64)
    device = host.to("vulkan")
    assert torch.equal(torch.view_as_real(device).cpu(), torch.view_as_real(host))
    assert torch.equal(torch.view_as_complex(torch.view_as_real(device)).cpu(), host)
    assert torch.equal(device.imag.cpu(), host.imag)
    assert torch.equal(device.real.cpu(), host.real)


def test_view_keeps_autograd() -> None:
    base = torch.ones(2, 3, device="vulkan", requires_grad=True)
    view = base.view(3, 2)
    assert view._base is base
    assert view.grad_fn is not None


def test_bad_view() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        torch.ones(6, device="vulkan").view(4)
    with pytest.raises(RuntimeError, match="not compatible"):
        torch.ones(2, 3, device="vulkan").t().view(6)


def test_versions_count_in_place_changes() -> None:
    tensor = torch.ones(3, device="vulkan")
    before = tensor._version
    tensor[0] = 2
    tensor.zero_()
    assert tensor._version == before + 2
