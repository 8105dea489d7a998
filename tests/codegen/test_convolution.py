"""Convolutions: every dimension, stride, padding, dilation and grouping, transposed too, with their gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import check, compiled, copies, dispatches, on_device, same

import vkinductor
from vkinductor.codegen import convolution, heuristics, implicit_gemm
from vkinductor.codegen.gemm.tiles import TILED, DirectTile, Tile

TOLERANCE = {
    torch.float16: {"rtol": 5e-3, "atol": 5e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float64: {"rtol": 1e-7, "atol": 1e-7},
}

CASES: list[tuple[dict[str, Any], int]] = [
    ({}, 3),
    ({"stride": 2, "padding": 1}, 3),
    ({"stride": 3, "padding": 2, "dilation": 2}, 3),
    ({"stride": 2, "dilation": 2}, 2),
    ({"padding": 3}, 1),
    ({"stride": 4}, 3),
]


def operator(dims: int, transposed: bool) -> Callable[..., Any]:
    return getattr(F, f"conv{'_transpose' if transposed else ''}{dims}d")


def operands(dims: int, transposed: bool, groups: int, tap: int, dtype: torch.dtype = torch.float32) -> list[Any]:
    """x, weight and bias of odd, unequal sizes; leaves."""
    ins, outs = 2 * groups, 3 * groups
    space = [7 + 2 * d for d in range(dims)]
    weight = [ins, outs // groups] if transposed else [outs, ins // groups]
    made = [torch.randn(2, ins, *space), torch.randn(*weight, *[tap] * dims), torch.randn(outs)]
    return [t.to(dtype).requires_grad_() for t in made]


def gradients(f: Callable[..., Any], args: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result and the gradient of each argument, under a fixed gradient of the result."""
    result = f(*args)
    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape)
    result.backward(weights.to(result.dtype).to(result.device))
    return [result.detach(), *[t.grad for t in args if t.grad is not None]]


def hold(f: Callable[..., Any], args: list[torch.Tensor], run: Callable[..., Any] | None = None) -> None:
    """Result and gradients of ``run`` (``f``, compiled, unless given) against float64; nothing on the CPU."""
    dtype = args[0].dtype
    want = gradients(f, [t.detach().double().requires_grad_() for t in args])
    vkinductor.reset_stats()
    got = gradients(run or compiled(f), on_device(args))
    assert not vkinductor.stats()["fallbacks"]
    same(got, [t.to(dtype) for t in want], **TOLERANCE[dtype])


def sweep(dims: int, transposed: bool) -> list[tuple[Callable[..., Any], list[torch.Tensor]]]:
    found = []
    for groups, (options, tap) in itertools.product((1, 2), CASES):
        more = {"output_padding": 1} if transposed and options.get("stride", 1) > 1 else {}

        f = functools.partial(operator(dims, transposed), groups=groups, **options, **more)
        found.append((f, operands(dims, transposed, groups, tap)))
    return found


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("dims", [1, 2])
def test_compiled(dims: int, transposed: bool) -> None:
    """One graph holds the whole sweep: compiling is what takes the time."""
    cases = sweep(dims, transposed)

    def f(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat([g(*tensors[3 * i : 3 * i + 3]).flatten() for i, (g, _) in enumerate(cases)])

    hold(f, [t for _, args in cases for t in args])


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_three_dimensions(transposed: bool) -> None:
    f, args = sweep(3, transposed)[7]
    hold(f, args)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_eager(transposed: bool) -> None:
    for f, args in [*sweep(1, transposed)[7:8], *sweep(2, transposed)[::4]]:
        hold(f, args, run=f)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    hold(lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2), operands(2, False, 1, 3, dtype))


def test_integers() -> None:
    x, w = torch.randint(-9, 9, (1, 3, 6, 7)), torch.randint(-9, 9, (4, 3, 3, 3))
    check(lambda x, w: F.conv2d(x, w, padding=1), x, w)


@pytest.mark.parametrize("tile", [TILED[-1], DirectTile(tm=3, tn=5, blocks=8)], ids=str)
def test_tiles(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tiles, and a sum over the batch that is cut into parts."""
    monkeypatch.setattr(implicit_gemm, "choose", lambda *a, **k: tile)
    monkeypatch.setattr(convolution, "parts", lambda *a: 3)
    cases = [*sweep(2, False)[1::5], *sweep(2, True)[2::5], *sweep(1, True)[:1]]

    def f(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat([g(*tensors[3 * i : 3 * i + 3]).flatten() for i, (g, _) in enumerate(cases)])

    hold(f, [t for _, args in cases for t in args])


def test_depthwise_and_same_padding() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, w, groups=5, padding="same"), v, groups=5, padding="same", dilation=2)

    shapes = ((2, 5, 9, 11), (10, 1, 3, 3), (5, 2, 2, 4))
    hold(f, [torch.randn(*shape).requires_grad_() for shape in shapes])


def test_without_batch() -> None:
    x, w, b = operands(2, False, 1, 3)
    hold(lambda x, w, b: F.conv2d(x, w, b), [x[0].detach().requires_grad_(), w, b])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_parts_of_a_half_sum(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are float32, whatever the operands are."""
    monkeypatch.setattr(convolution, "parts", lambda *a: 2)
    hold(lambda x, w: F.conv2d(x, w), operands(2, False, 1, 3, dtype)[:2])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
def test_what_follows_is_stored_with_it(transposed: bool, dynamic: bool) -> None:
    """Bias, activation and residual: one kernel."""
    layer = operator(2, transposed)
    x, w, b = (t.detach() for t in operands(2, transposed, 1, 3))
    residual = torch.randn_like(layer(x, w, b))

    def f(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.relu(layer(x, w, b)) + r

    g = compiled(f, dynamic=dynamic)
    args = on_device([x, w, b, residual])
    same(g(*args), f(x, w, b, residual))
    assert dispatches(g, *args) == 1


def test_bias_is_stored_with_it_eagerly() -> None:
    args = on_device([t.detach() for t in operands(2, False, 1, 3)])
    F.conv2d(*args)
    assert dispatches(F.conv2d, *args) == 1


@pytest.mark.parametrize("tap", [1, 3])
def test_channels_last_is_not_copied(tap: int) -> None:
    x = torch.randn(2, 6, 7, 9).to(memory_format=torch.channels_last)
    w = torch.randn(4, 6, tap, tap).to(memory_format=torch.channels_last)
    g = compiled(F.conv2d)
    # Of the general kernel: products give channels last, and a graph's result, contiguous by torch's word, is a copy.
    with heuristics.override(convolution_products=0):
        same(g(*on_device([x, w])), F.conv2d(x, w))
    assert dispatches(g, *on_device([x, w])) == 1


def test_views_are_not_copied() -> None:
    base, w = torch.randn(2, 9, 20, 20), torch.randn(3, 4, 3, 3)
    g = compiled(lambda base, w: F.conv2d(base[:, 1::2, 2:, ::2], w.mT))
    same(g(*on_device([base, w])), F.conv2d(base[:, 1::2, 2:, ::2], w.mT))
    assert dispatches(g, *on_device([base, w])) == 1


def test_dynamic_sizes() -> None:
    """One program for batches and images of many sizes."""

    def f(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(F.relu(F.conv2d(x, w, stride=2, padding=1)), v, stride=2)

    counts = torch._dynamo.testing.CompileCounterWithBackend("vulkan")
    g = torch.compile(f, backend=counts, fullgraph=True, dynamic=True)
    w, v = torch.randn(5, 3, 3, 3), torch.randn(5, 2, 2, 2)
    for batch, height, width in ((4, 9, 8), (7, 8, 17), (6, 31, 30)):
        args = [t.requires_grad_() for t in (torch.randn(batch, 3, height, width), w.clone(), v.clone())]
        hold(f, args, run=g)
    assert counts.frame_count == 1


@pytest.mark.parametrize("shape", [(0, 3, 5, 5)])
def test_empty(shape: tuple[int, ...]) -> None:
    w = torch.randn(4, shape[1], 3, 3)
    check(lambda x, w, b: F.conv2d(x, w, b), torch.randn(shape), w, torch.randn(4))


def test_nan_stays_where_it_belongs() -> None:
    x, w = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)
    x[0, 1, 2, 3] = torch.nan
    check(lambda x, w: F.conv2d(x, w, padding=1), *copies([x, w]))


def test_strides_are_read_after_inductor_has_padded_them() -> None:
    """Rows of 33 get strides of 36: the padded input of a "same" convolution is such a buffer."""
    x, weight = torch.randn(2, 3, 32, 32), torch.randn(16, 3, 3, 3)

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(torch.nn.functional.pad(x, (0, 1, 0, 1)), weight, stride=2)

    torch._dynamo.reset()
    got = torch.compile(f, backend="vulkan")(x.to("vulkan"), weight.to("vulkan")).cpu()
    torch.testing.assert_close(got, f(x, weight))
