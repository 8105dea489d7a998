"""Mixed precision, sizes as values, and tensors made inside: none of it leaves the device, all agrees with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vkinductor


def agrees(
    f: Callable[..., Any],
    *inputs: Any,
    dynamic: bool | None = None,
    devices: tuple[str, ...] = ("cpu",),
    **tolerance: Any,
) -> Any:
    """f compiled gives what eager gives, on tensors of the CPU and of the device, without fallback."""
    expected = f(*inputs)
    options = {"fallback": "error"}
    for device in devices:
        call = torch.compile(f, backend="vulkan", fullgraph=True, dynamic=dynamic, options=options)
        moved = [i.to(device) if isinstance(i, torch.Tensor) else i for i in inputs]
        got = call(*moved)
        torch.testing.assert_close(
            torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), got), expected, **tolerance
        )
    return expected


def autocast(f: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    def run(x: torch.Tensor, *rest: Any) -> Any:
        with torch.autocast(x.device.type, dtype=dtype):
            return f(x, *rest)

    return run


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_inputs_and_float_weights_under_autocast(dtype: torch.dtype) -> None:
    weight, bias, x = torch.randn(8, 16), torch.randn(8), torch.randn(4, 16)

    def f(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        h = torch.nn.functional.linear(x.to(dtype), weight, bias)
        return h, torch.nn.functional.layer_norm(h, (8,)), (x @ weight.t()).softmax(-1)

    result = agrees(autocast(f, dtype), x, weight, bias, rtol=3e-2, atol=3e-2)
    # On the device normalizations and softmax give float32, as on CUDA.
    agrees(autocast(f, dtype), x, weight, bias, devices=("vulkan",), rtol=3e-2, atol=3e-2, check_dtype=False)
    assert result[0].dtype is dtype


def test_autocast_around_the_call_and_in_the_backward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    x = torch.randn(4, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x.bfloat16())
    expected.float().pow(2).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    call = torch.compile(model, backend="vulkan", options={"fallback": "error"})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = call(x.bfloat16())
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=3e-2, atol=3e-2)
    result.float().pow(2).sum().backward()
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert p.grad is not None
        assert p.grad.dtype is torch.float32
        torch.testing.assert_close(p.grad, gradient, rtol=5e-2, atol=5e-2)


def test_a_model_of_two_dtypes() -> None:
    first, second = torch.randn(8, 8, dtype=torch.float16), torch.randn(8, 8)

    def f(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (x.half() @ first).float() @ second + x

    agrees(f, torch.randn(3, 8), first, second, devices=("cpu", "vulkan"), rtol=1e-2, atol=5e-2)
    agrees(lambda x, y: (x * y).sum(0), torch.randn(3, 4, dtype=torch.float16), torch.randn(3, 4))
    agrees(lambda x, n: x * n + n // 2, torch.randn(3, 4, dtype=torch.bfloat16), torch.arange(4))


@pytest.mark.parametrize("rows", [3, 5])
def test_sizes_as_values(rows: int) -> None:
    def f(x: torch.Tensor) -> Any:
        n, m = x.shape
        scaled = x * n + m / n - n // 2 + (n % 2) * 0.5
        return scaled, torch.full((n, 2), m), x.sum() / x.numel(), torch.tensor(n * m), n * m + 1

    agrees(f, torch.randn(rows, 7), dynamic=True)


@pytest.mark.parametrize("rows", [4, 6])
def test_arithmetic_in_shapes(rows: int) -> None:
    def f(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return (
            x.view(n // 2, 2, -1).sum(1),
            x.new_zeros(n * 2 - 1, max(n - 4, 1)) + n,
            x[: n - 1].expand(3, -1, -1).reshape(3 * (n - 1), -1),
            torch.nn.functional.pad(x, (n, 1)),
            torch.cat([x, x[: n // 2]]).repeat(1, n // 2),
        )

    agrees(f, torch.randn(rows, 3), dynamic=True)


@pytest.mark.parametrize("n", [3, 8])
def test_numbers_that_vary(n: int) -> None:
    agrees(lambda x, n: x[:n] * n + torch.arange(n)[:, None].to(x.device), torch.randn(10, 3), n, dynamic=True)
    agrees(lambda x, s: x * s + s**2, torch.randn(4), n * 0.37, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_made_inside(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        n, device = x.shape[1], x.device
        positions = torch.arange(n, device=device)
        mask = torch.ones(n, n, dtype=torch.bool, device=device).tril()
        table = torch.tensor([1.5, -2.0, 0.25], device=device)
        return (
            x + torch.tensor(3.0),
            x * torch.tensor([2.0], device=device),
            table[positions % 3] + x,
            torch.full_like(x, 2.5) * x + torch.full((n,), 7, device=device),
            torch.where(mask, x @ x.t() if x.shape[0] == n else x[:1].t() @ x[:1], float("-inf")),
            torch.linspace(0, 1, 5, device=device).sum() + torch.eye(n, device=device).sum(),
            torch.zeros(n, dtype=torch.int64, device=device).scatter(0, positions[:2], 5),
        )

    for columns in (4, 6):
        devices = ("cpu", "vulkan") if columns == 4 else ("cpu",)
        agrees(f, torch.randn(2, columns), dynamic=dynamic, devices=devices, rtol=1e-5, atol=1e-5)


def test_on_the_cpus_tensors_nothing_names_a_device() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[-1]) * torch.tensor([1.0, 2.0, 3.0]) + torch.ones(3)

    x = torch.randn(2, 3)
    call = torch.compile(f, backend="vulkan", fullgraph=True, options={"fallback": "error"})
    torch.testing.assert_close(call(x), f(x))
    assert not vkinductor.stats()["fallbacks"].get("aten.arange.default")
