"""Autograd across the CPU's edge: gradients equal eager's, and torch's own rules hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

Train = Callable[..., Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8, bias=False)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x)))) * self.scale


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients(train: Train, dynamic: bool | None) -> None:
    train(Block(), lambda: (torch.randn(3, 8, requires_grad=True),), steps=2, dynamic=dynamic)


def test_gradients_accumulate_and_mirrors_follow_the_optimizer(counted: Train) -> None:
    torch.manual_seed(0)
    models = [nn.Linear(4, 3), nn.Linear(4, 3)]
    models[1].load_state_dict(models[0].state_dict())
    steps = [models[0], torch.compile(models[1], backend="vulkan")]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in models]
    for step in range(4):
        x = torch.randn(5, 4)
        losses = []
        for run, optimizer in zip(steps, optimizers, strict=True):
            loss = run(x).square().mean()
            loss.backward()
            losses.append(loss.item())
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for mine, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_modes_of_autograd() -> None:
    module = nn.Linear(3, 3)
    compiled = torch.compile(module, backend="vulkan", fullgraph=True)
    x = torch.randn(2, 3)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    y = compiled(x)
    y.sum().backward()  # a mirror made in inference mode can still be saved for backward
    assert module.weight.grad is not None
    module.requires_grad_(False)
    assert not compiled(x).requires_grad
    assert compiled(x.requires_grad_()).requires_grad


def test_saved_tensors_when_a_weight_changes_before_backward() -> None:
    w = nn.Parameter(torch.full((3,), 2.0))
    x = torch.ones(3, requires_grad=True)
    y = torch.compile(lambda x: x * w, backend="vulkan", fullgraph=True)(x)
    with torch.no_grad():
        w.fill_(100.0)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_a_graph_that_writes_what_another_saved() -> None:
    first = torch.compile(lambda x, y: x * y, backend="vulkan", fullgraph=True)
    second = torch.compile(lambda y: y.add_(1), backend="vulkan", fullgraph=True)
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    out = first(x, y)
    second(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_hooks_and_retained_graphs() -> None:
    module = nn.Linear(3, 1, bias=False)
    seen: list[torch.Tensor] = []
    module.weight.register_hook(lambda g: seen.append(g) or g * 2)
    y = torch.compile(module, backend="vulkan", fullgraph=True)(torch.ones(1, 3)).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert [g.device.type for g in seen] == ["cpu", "cpu"]
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [[4.0] * 3]


def test_double_backward_is_torchs_own_error() -> None:
    x = torch.randn(3, requires_grad=True)
    y = torch.compile(lambda x: (x.sin() * x).sum(), backend="vulkan", fullgraph=True)(x)
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def test_unused_and_integer_inputs(train: Train) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.unused = nn.Parameter(torch.ones(2))

        def forward(self, index: torch.Tensor, x: torch.Tensor) -> Any:
            return self.table(index) + x, index * 2, self.unused

    train(Module(), lambda: (torch.tensor([[1, 2], [6, 1]]), torch.randn(4, requires_grad=True)))


def test_checkpoint(train: Train) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
            return y * 2

    train(Module(), lambda: (torch.randn(3, 8, requires_grad=True),))


def test_graph_breaks(train: Train) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            torch._dynamo.graph_break()
            return self.second(y) + y

    train(Module(), lambda: (torch.randn(3, 8, requires_grad=True),), fullgraph=False)


def test_an_autograd_function(train: Train) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * x

    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Twice.apply(x) + 1

    train(Module(), lambda: (torch.randn(3, requires_grad=True),))


def test_gradient_of_one_output_of_two() -> None:
    x = torch.ones(3, requires_grad=True)
    y, _ = torch.compile(lambda x: (x * 2, x * 3), backend="vulkan", fullgraph=True)(x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
