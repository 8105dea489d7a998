"""torch.func on device tensors, and higher-order operators compiled for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import func, nn

import vkinductor


@pytest.fixture(autouse=True)
def without_compiler() -> None:
    """Here operators are compiled, as they are for users."""


def agree(f: Callable[..., Any], *args: torch.Tensor, compiled: bool = False) -> None:
    """f of device copies of args gives what f of args gives, and runs no operator on the CPU."""
    expected = f(*args)
    torch._dynamo.reset()
    vkinductor.reset_stats()
    run = torch.compile(f, backend="vulkan", fullgraph=True) if compiled else f
    actual = run(*(a.to("vulkan") for a in args))
    assert vkinductor.stats()["fallbacks"] == {}
    for a, b in zip(torch.utils._pytree.tree_leaves(actual), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert a.device.type == "vulkan"
        torch.testing.assert_close(a.detach().cpu(), b.detach())


def wave(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


X = torch.linspace(-1.0, 2.0, 5)
MATRIX = torch.linspace(-1.0, 1.0, 15).view(3, 5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("f", "args"),
    [
        (func.grad(wave), (X,)),
        (func.vmap(func.grad(wave)), (MATRIX,)),
        (func.vmap(lambda a, b: a @ b, in_dims=(0, None)), (MATRIX, MATRIX.t().contiguous())),
        (func.vmap(lambda a: a.softmax(0), in_dims=1, out_dims=1), (MATRIX,)),
        (func.jacrev(torch.sin), (X,)),
        (func.jacfwd(lambda x: x * x.sum()), (X,)),
        (func.hessian(wave), (X,)),
        (lambda x: func.jvp(torch.tanh, (x,), (x + 1,)), (X,)),
        (lambda x: func.vjp(torch.exp, x)[1](x), (X,)),
    ],
    ids=["grad", "vmap_grad", "vmap_matmul", "vmap_dims", "jacrev", "jacfwd", "hessian", "jvp", "vjp"],
)
def test_transform(f: Callable[..., Any], args: tuple[torch.Tensor, ...], compiled: bool) -> None:
    agree(f, *args, compiled=compiled)


def test_functional_call() -> None:
    layer = nn.Linear(5, 2)
    state = dict(layer.named_parameters())

    def f(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    agree(f, MATRIX, state["weight"].detach(), state["bias"].detach())


def test_gradients_of_each_example() -> None:
    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).tanh().sum()

    agree(func.vmap(func.grad(loss), in_dims=(None, 0)), MATRIX.t().contiguous(), MATRIX, compiled=False)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond(sign: float) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() @ x, lambda x: (x * 2).sum(), (x,))

    agree(f, X * sign, compiled=True)


def test_while_loop() -> None:
    def f(x: torch.Tensor) -> Any:
        steps = torch.zeros((), dtype=torch.int64, device=x.device)
        return torch._higher_order_ops.while_loop(
            lambda i, y: (i < 4) & (y.sum() < 100), lambda i, y: (i + 1, y * 2 + 1), (steps, x)
        )

    agree(f, X, compiled=True)


def test_scan() -> None:
    from torch._higher_order_ops.scan import scan

    def f(start: torch.Tensor, rows: torch.Tensor) -> Any:
        return scan(lambda carry, row: (carry * 0.5 + row, carry + row), start, rows, dim=0)

    agree(f, X, MATRIX, compiled=True)


def test_associative_scan() -> None:
    """Its generic mode: torch itself refuses the other one on devices but CUDA and XPU."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def run(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b + a + b, x, dim=1, combine_mode="generic")

    # (1 + a)(1 + b) - 1: products of 1 + x.
    expected = (1 + MATRIX).cumprod(1) - 1
    vkinductor.reset_stats()
    torch._dynamo.reset()
    actual = torch.compile(run, backend="vulkan", fullgraph=True)(MATRIX.to("vulkan"))
    torch.testing.assert_close(actual.cpu(), expected)
    assert vkinductor.stats()["fallbacks"] == {}


def test_tensors_made_in_forward_and_symbolic_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[0], device=x.device, dtype=x.dtype)
        mask = torch.ones(x.shape[0], x.shape[0], device=x.device).tril()
        return (mask * places) @ x + torch.full_like(x, x.shape[1] / 3) + torch.zeros(x.shape[1], device=x.device)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="vulkan", fullgraph=True, dynamic=True)
    for rows in (3, 5, 17):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x.to("vulkan")).cpu(), f(x))
        agree(f, x)
