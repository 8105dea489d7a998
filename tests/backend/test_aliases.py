"""Outputs that are inputs, look into inputs, or look into each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Agree = Callable[..., Any]


def test_views_of_inputs(agree: Agree) -> None:
    def f(x: torch.Tensor) -> Any:
        return x.t(), x[1:].view(-1), x.detach(), x.view(torch.int32), x * 2

    compiled, (x,) = agree(f, lambda: (torch.randn(30)[6:18].view(3, 4),))
    t, flat, detached, bits, double = compiled(x)
    for view in (t, flat, detached, bits):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert double.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    t.zero_()
    assert x.abs().sum() == 0
    assert flat.abs().sum() == 0


def test_view_of_a_small_part(agree: Agree) -> None:
    _, (x,) = agree(lambda x: (x[1:], x * 1), lambda: (torch.randn(1000)[400:410],))
    y = torch.compile(lambda x: (x[1:], x * 1), backend="vulkan")(x)[0]
    y.fill_(3)
    assert x[1:].tolist() == [3.0] * 9


def test_output_is_the_input() -> None:
    x = torch.randn(3)
    same, changed = torch.compile(lambda x: (x, x.add_(1)), backend="vulkan", fullgraph=True)(x)
    assert same is x
    assert changed is x


def test_views_of_inputs_with_gradients() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    view, detached, product = torch.compile(lambda x: (x.t(), x.detach(), x * 2), backend="vulkan", fullgraph=True)(x)
    assert view.requires_grad
    assert not detached.requires_grad
    (view.sum() + product.sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0] * 3] * 2


def test_outputs_that_alias_each_other(agree: Agree) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y[1:].t(), y.sum()

    compiled, (x,) = agree(f, lambda: (torch.randn(3, 4),))
    y, part, _ = compiled(x)
    part.zero_()
    assert y[1:].abs().sum() == 0


def test_outputs_that_alias_with_gradients() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y.view(-1)[1:], y.detach()

    results = []
    for run in (f, torch.compile(f, backend="vulkan", fullgraph=True)):
        x = torch.ones(2, 3, requires_grad=True)
        y, flat, detached = run(x)
        assert flat.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        assert detached.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        assert not detached.requires_grad
        with torch.no_grad():
            y.mul_(3)
        assert flat.tolist() == [6.0] * 5
        (y.sum() + flat.sum()).backward()
        results.append(x.grad)
    assert torch.equal(*results)


def test_strides_of_results(agree: Agree) -> None:
    def f(x: torch.Tensor) -> Any:
        return (x + 1).t(), (x + 2)[:, ::2], (x * 2).expand(2, 3, 4), torch.ones(4).as_strided((2, 3), (1, 1)) * 1

    agree(f, lambda: (torch.randn(3, 4),))
