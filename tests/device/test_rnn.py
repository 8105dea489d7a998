"""Recurrent layers: the fused cells against torch's own on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

KINDS = {
    "lstm": lambda **k: nn.LSTM(4, 6, num_layers=2, **k),
    "gru": lambda **k: nn.GRU(4, 6, num_layers=2, **k),
    "rnn": lambda **k: nn.RNN(4, 6, **k),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}, {"bias": False}], ids=str)
def test_layers(name: str, options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    host = KINDS[name](**options)
    device = KINDS[name](**options)
    device.load_state_dict(host.state_dict())
    device.to("vulkan")
    x = torch.randn(3, 5, 4)
    a, b = x.clone().requires_grad_(), x.to("vulkan").requires_grad_()
    out, on_device = host(a)[0], device(b)[0]
    assert torch.allclose(on_device.cpu(), out, atol=1e-5)
    out.square().sum().backward()
    on_device.square().sum().backward()
    assert torch.allclose(b.grad.cpu(), a.grad, atol=1e-4)
    for p, q in zip(host.parameters(), device.parameters(), strict=False):
        assert torch.allclose(q.grad.cpu(), p.grad, atol=1e-4)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell], ids=lambda c: c.__name__)
def test_cells(cell: type[nn.Module]) -> None:
    host = cell(4, 6)
    x = torch.randn(3, 4)
    expected = host(x)
    result = host.to("vulkan")(x.to("vulkan"))
    if isinstance(expected, torch.Tensor):
        expected, result = (expected,), (result,)
    for a, b in zip(expected, result, strict=True):
        assert torch.allclose(b.cpu(), a, atol=1e-5)


def test_packed_sequences() -> None:
    x = torch.randn(3, 5, 4)
    host = nn.GRU(4, 6, batch_first=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2], batch_first=True)
    expected = nn.utils.rnn.pad_packed_sequence(host(packed)[0], batch_first=True)[0]
    device = host.to("vulkan")
    on_device = nn.utils.rnn.pack_padded_sequence(x.to("vulkan"), [5, 3, 2], batch_first=True)
    result = nn.utils.rnn.pad_packed_sequence(device(on_device)[0], batch_first=True)[0]
    assert torch.allclose(result.cpu(), expected, atol=1e-5)
    assert packed.vulkan().data.is_vulkan
