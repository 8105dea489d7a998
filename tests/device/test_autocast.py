"""Mixed precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vkinductor.runtime.errors import UnsupportedError

DEVICE = "vulkan"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_policies(dtype: torch.dtype) -> None:
    a = torch.randn(4, 4).to(DEVICE)
    low = a.to(dtype)
    with torch.autocast(DEVICE, dtype=dtype):
        assert torch.is_autocast_enabled(DEVICE)
        assert (a @ a).dtype is dtype
        assert torch.mm(a, low).dtype is dtype
        assert F.linear(a, a, a[0]).dtype is dtype
        assert F.conv2d(a.view(1, 1, 4, 4), a.view(1, 1, 4, 4)).dtype is dtype
        assert F.scaled_dot_product_attention(a[None], a[None], a[None]).dtype is dtype
        assert low.exp().dtype is torch.float32
        assert low.softmax(-1).dtype is torch.float32
        assert low.sum().dtype is torch.float32
        assert low.sum(0, dtype=torch.float64).dtype is torch.float64
        assert F.layer_norm(low, (4,)).dtype is torch.float32
        assert F.mse_loss(low, low).dtype is torch.float32
        assert torch.addcmul(a, low, low).dtype is torch.float32
        assert (low + low).dtype is dtype
        assert (a.double() @ a.double()).dtype is torch.float64
        with torch.autocast(DEVICE, enabled=False):
            assert (a @ a).dtype is torch.float32
    assert (a @ a).dtype is torch.float32


def test_values_and_gradients() -> None:
    torch.manual_seed(0)
    host = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])
    expected = F.cross_entropy(host(x), y)
    expected.backward()
    grads = [p.grad.clone() for p in host.parameters()]
    host.zero_grad()
    model = host.to(DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        out = model(x.to(DEVICE))
        assert out.dtype is torch.bfloat16
        loss = F.cross_entropy(out, y.to(DEVICE))
    assert loss.dtype is torch.float32
    loss.backward()
    assert abs(loss.item() - expected.item()) < 0.05
    for p, g in zip(model.parameters(), grads, strict=False):
        assert p.grad.dtype is torch.float32
        assert torch.allclose(p.grad.cpu(), g, atol=0.05)


def test_unsafe_loss() -> None:
    p = torch.rand(3).to(DEVICE)
    with torch.autocast(DEVICE, dtype=torch.float16), pytest.raises(UnsupportedError, match="with_logits"):
        F.binary_cross_entropy(p, p)


def test_unsupported_dtype_disables() -> None:
    with pytest.warns(UserWarning, match="not supported"), torch.autocast(DEVICE, dtype=torch.float64):
        assert not torch.is_autocast_enabled(DEVICE)


def test_grad_scaler() -> None:
    scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
    weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler.scale((weight * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.cpu().tolist() == [0, 0, 0]
