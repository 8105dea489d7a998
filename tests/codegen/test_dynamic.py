"""Symbolic shapes: one program serves many sizes, and every one of them right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import copies, on_device, same
from torch._dynamo.testing import CompileCounterWithBackend


def mlp(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    h = F.layer_norm(F.silu(F.linear(x, w)), w.shape[:1])
    return torch.softmax(h @ v, -1) + x.mean(-1, keepdim=True)


def counted() -> tuple[CompileCounterWithBackend, Callable[..., Any]]:
    counter = CompileCounterWithBackend("vulkan")
    return counter, lambda f, **options: torch.compile(f, backend=counter, fullgraph=True, **options)


def test_ten_batch_sizes_one_compile() -> None:
    counter, compile_ = counted()
    g = compile_(mlp, dynamic=True)
    w, v = torch.randn(24, 16), torch.randn(24, 7)
    for batch in (2, 3, 4, 7, 8, 31, 64, 65, 127, 200):
        args = [torch.randn(batch, 16), w, v]
        same(g(*on_device(args)), mlp(*args), rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


def test_size_one_takes_at_most_one_more() -> None:
    counter, compile_ = counted()
    g = compile_(mlp, dynamic=True)
    w, v = torch.randn(24, 16), torch.randn(24, 7)
    for batch in (5, 1, 6, 1):
        args = [torch.randn(batch, 16), w, v]
        same(g(*on_device(args)), mlp(*args), rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("dynamic", [True, None])
def test_smaller_than_what_was_compiled(dynamic: bool | None) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "softmax": (x @ y.t()).softmax(-1),
            "rows": x.sum(0),
            "argmax": x.argmax(0),
            "pad": F.pad(x, (0, 1, 2, 3)),
            "cat": torch.cat([x, x.flip(0) * 2]),
            "mean": x.mean(),
            "var": x.var(0, correction=0),
        }

    counter, compile_ = counted()
    g = compile_(f, dynamic=dynamic)
    for n in (128, 127, 1, 3, 128, 129, 500):
        args = [torch.randn(n, 9), torch.randn(n, 9)]
        same(g(*on_device(args)), f(*args), rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 3


def test_sequence_and_batch_vary() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    counter, compile_ = counted()
    g = compile_(attention, dynamic=True)
    for batch, length in ((3, 5), (4, 17), (5, 64), (7, 33)):
        args = [torch.randn(batch, 2, length, 8) for _ in range(3)]
        same(g(*on_device(args)), attention(*args), rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


@pytest.mark.parametrize("norm", ["layer", "batch", "group"])
def test_norms_forward_and_backward(norm: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if norm == "layer":
            return F.layer_norm(x.transpose(1, -1), (6,), w, b)
        if norm == "batch":
            return F.batch_norm(x, None, None, w, b, training=True)
        return F.group_norm(x, 3, w, b)

    counter, compile_ = counted()
    g = compile_(f, dynamic=True)
    for batch, size in ((4, 5), (3, 9), (17, 8), (5, 20)):
        args = [torch.randn(batch, 6, size, size + 2, requires_grad=True), torch.rand(6) + 0.5, torch.randn(6)]
        args[1].requires_grad_()
        args[2].requires_grad_()
        moved, reference = on_device(args), copies(args)
        actual, expected = g(*moved), f(*reference)
        seed = torch.randn(expected.shape)
        gradients = torch.autograd.grad(actual, moved, seed.to("vulkan"))
        wanted = torch.autograd.grad(expected, reference, seed)
        same((actual.detach(), gradients), (expected.detach(), wanted), rtol=1e-4, atol=2e-4)
    assert counter.frame_count == 1


def test_sizes_as_values() -> None:
    def f(x: torch.Tensor, n: int) -> dict[str, torch.Tensor]:
        rows, columns = x.shape
        return {
            "scaled": x / columns**0.5,
            "ratio": x * (rows / columns),
            "floor": x + rows // 2 - columns % 3,
            "arange": torch.arange(rows, device=x.device)[:, None] * columns + x,
            "full": x.new_full((rows, 2), columns),
            "number": x * n + n,
            "integer": torch.arange(columns, device=x.device) + n,
            "view": x.view(columns, rows).t() + 0,
            "max": x + max(rows, columns),
        }

    counter, compile_ = counted()
    g = compile_(f, dynamic=True)
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(6, 4, dtype=dtype)
        same(torch.compile(f, backend="vulkan", dynamic=True)(x.to("vulkan"), 3), f(x, 3))
    for rows, columns, n in ((6, 4, 3), (9, 5, 7), (12, 2, 1 << 33), (5, 30, -(1 << 40))):
        x = torch.randn(rows, columns)
        same(g(x.to("vulkan"), n), f(x, n))
    assert counter.frame_count <= 3


def test_strides_vary() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + x.sum(1, keepdim=True)

    g = torch.compile(f, backend="vulkan", fullgraph=True, dynamic=True)
    for x in (torch.randn(12, 10)[:, :7], torch.randn(9, 20)[1:, 3:], torch.randn(5, 6).t()):
        same(g(*on_device([x])), f(x))


def test_empty_at_run_time() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, x.sum(0), x @ x.t()

    g = torch.compile(f, backend="vulkan", fullgraph=True, dynamic=True)
    for n in (5, 0, 3):
        x = torch.randn(n, 4)
        same(g(x.to("vulkan")), f(x))


def test_data_dependent_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        g = torch.compile(f, backend="vulkan", fullgraph=True)
        for n in (20, 50):
            x = torch.randn(n)
            same(g(x.to("vulkan")), f(x))
