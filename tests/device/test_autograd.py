"""Training in eager mode: gradients from the engine's threads, modules, and optimisers."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "vulkan"


def test_backward() -> None:
    host = torch.randn(3, 4, requires_grad=True)
    device = host.detach().to(DEVICE).requires_grad_()
    for t in (host, device):
        ((t @ t.t()).relu()[:2].sum() + t[1:, ::2].exp().mean()).backward()
    assert device.grad.device == device.device
    assert torch.allclose(device.grad.cpu(), host.grad, atol=1e-5)


def test_accumulation_and_hooks() -> None:
    w = torch.ones(2, device=DEVICE, requires_grad=True)
    seen: list[str] = []
    w.register_hook(lambda g: seen.append(str(g.device)))
    w.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    (w * 2).sum().backward()
    (w * 3).sum().backward()
    assert w.grad.cpu().tolist() == [5, 5]
    assert seen == ["vulkan:0", "accumulated"] * 2


def test_gradients_across_the_edge() -> None:
    w = torch.randn(3, requires_grad=True)
    (w.to(DEVICE) * 2).cpu().sum().backward()
    assert w.grad.tolist() == [2, 2, 2]
    v = torch.ones(3, device=DEVICE, requires_grad=True)
    (v.cpu() * torch.arange(3)).sum().backward()
    assert v.grad.cpu().tolist() == [0, 1, 2]


def test_double_backward_and_grad() -> None:
    x = torch.tensor([2.0], device=DEVICE, requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.item() == 12
    assert second.item() == 12


def test_in_place_and_views_in_autograd() -> None:
    x = torch.ones(4, device=DEVICE, requires_grad=True)
    y = x * 2
    y[1:3].mul_(3)
    y.sum().backward()
    assert x.grad.cpu().tolist() == [2, 6, 6, 2]
    with pytest.raises(RuntimeError, match="leaf"):
        x.add_(1)


def test_custom_function_and_checkpoint() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    x = torch.ones(3, device=DEVICE, requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.cpu().tolist() == [2, 2, 2]

    from torch.utils.checkpoint import checkpoint

    layer = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5)).to(DEVICE)
    out = checkpoint(layer, x, use_reentrant=False)
    out.sum().backward()
    dropped = out.detach().cpu() == 0
    assert torch.equal(layer[0].bias.grad.cpu() == 0, dropped)  # the same numbers were drawn again


def test_backward_from_several_threads() -> None:
    weights = [torch.full((8, 8), float(i), device=DEVICE, requires_grad=True) for i in range(4)]
    shared = torch.ones(8, 8, device=DEVICE, requires_grad=True)
    errors: list[BaseException] = []

    def work(w: torch.Tensor) -> None:
        try:
            for _ in range(4):
                ((w @ shared).sin() + w).sum().backward()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(w,)) for w in weights]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for i, w in enumerate(weights):
        host = torch.full((8, 8), float(i), requires_grad=True)
        ((host @ torch.ones(8, 8)).sin() + host).sum().backward()
        assert torch.allclose(w.grad.cpu(), 4 * host.grad, atol=1e-3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
        self.up = nn.Linear(8, 16)
        self.dropout = nn.Dropout(0.0)
        self.down = nn.Linear(16, 11)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(tokens))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.down(self.dropout(F.gelu(self.up(x)))) * self.scale


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "sgd single": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training(name: str) -> None:
    torch.manual_seed(0)
    host = Model()
    device = Model()
    device.load_state_dict(host.state_dict())
    device.to(DEVICE)
    assert all(t.is_vulkan for t in (*device.parameters(), *device.buffers()))
    tokens, targets = torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (10,))
    optimisers = [OPTIMISERS[name](m.parameters()) for m in (host, device)]
    for _ in range(3):
        losses = []
        for model, optimiser, where in zip((host, device), optimisers, ("cpu", DEVICE), strict=False):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(tokens.to(where)).flatten(0, 1), targets.to(where))
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            losses.append((loss.item(), norm.item()))
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for a, b in zip(host.parameters(), device.parameters(), strict=False):
        assert torch.allclose(a, b.cpu(), atol=2e-4)
    state = optimisers[1].state_dict()
    optimisers[1].load_state_dict(state)


def test_norms_pooling_and_losses() -> None:
    torch.manual_seed(1)
    layers = [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)),
        nn.Sequential(nn.GroupNorm(1, 3), nn.Upsample(scale_factor=2), nn.AvgPool2d(2), nn.SiLU()),
        nn.Sequential(nn.Softmax(1), nn.RMSNorm(8), nn.PixelUnshuffle(2)),
    ]
    x = torch.randn(2, 3, 8, 8)
    for layer in layers:
        a = x.clone().requires_grad_()
        out = layer(a)
        out.square().sum().backward()
        b = x.to(DEVICE).requires_grad_()
        layer.zero_grad()
        on_device = layer.to(DEVICE)(b)
        on_device.square().sum().backward()
        assert torch.allclose(on_device.cpu(), out, atol=1e-4)
        assert torch.allclose(b.grad.cpu(), a.grad, atol=1e-3)


def test_gradcheck() -> None:
    x = torch.randn(3, 3, dtype=torch.float64).to(DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: (t @ t).tanh().sum(0), (x,), fast_mode=True)


def test_functional_transforms() -> None:
    x = torch.randn(4, 3)
    grad = torch.func.grad(lambda t: t.sin().sum())(x.to(DEVICE))
    assert torch.allclose(grad.cpu(), x.cos(), atol=1e-6)
    assert torch.allclose(torch.func.vmap(lambda t: t * 2 + t.sum())(x.to(DEVICE)).cpu(), x * 2 + x.sum(1, True))
