"""Products by whole tiles: floats in registers, and cooperative matrices emulated in GLSL by the same template text, or
the device's own where it has them of 8 x 8 x 8 (Mesa 26's lavapipe: tools/drivers.py).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, dispatches, name_of, on_device, same

import vkinductor
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.cooperative import SubgroupTile, WorkgroupTile
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.tiles import RegisterTile, Tile

TILES: dict[str, Tile] = {
    "subgroup": SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8),
    "workgroup": WorkgroupTile(16, 32, 16, threads=64, emulated=1),
    "native": SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8)),
    "register": RegisterTile(16, 32, 8, 4, 4),
}
TOLERANCE = {
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-4},
}

kinds = pytest.mark.parametrize("kind", TILES)


@pytest.fixture(autouse=True)
def _shapes(request: pytest.FixtureRequest) -> None:
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    problem = Problem(1, 16, 32, 16, params.get("dtype", torch.float16))
    if params.get("kind") == "native" and not TILES["native"].fits(vkinductor.device_info(), problem):
        pytest.skip("the device has no such matrices")


def operands(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


def exact(f: Callable[..., Any], args: list[torch.Tensor]) -> Any:
    """``f`` in float64, rounded to the dtype of the arguments."""
    wide = f(*[a.double() for a in args])
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(args[0].dtype), wide)


def hold(tile: Tile, f: Callable[..., Any], *args: torch.Tensor) -> Callable[..., Any]:
    """Compile ``f`` with ``tile`` and compare with float64; returns what was compiled."""
    moved = on_device(args)
    g = compiled(f, dynamic=False)
    with forced(tile):
        result = g(*moved)
    same(result, exact(f, list(args)), **TOLERANCE[args[0].dtype])
    return g


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@kinds
def test_sizes_that_vary(kind: str) -> None:
    """One kernel for sizes below, at and above the edges of tiles."""
    g = torch.compile(product, backend="vulkan", fullgraph=True, dynamic=True)
    with forced(TILES[kind]):
        for m, n, k in itertools.product((2, 15, 16, 17, 130), (3, 31, 32, 33), (2, 7, 16, 33)):
            a, b = operands(torch.float16, (m, k), (k, n))
            same(g(*on_device([a, b])), exact(product, [a, b]), **TOLERANCE[torch.float16])


@pytest.mark.parametrize("k", [32, 96, 70])
def test_one_tile_a_pass(k: int) -> None:
    """Instead of two: whole passes, and what is left of k."""
    tile = WorkgroupTile(16, 32, 32, threads=64, unroll=1, emulated=1)
    hold(tile, product, *operands(torch.float16, (33, k), (k, 64)))
    with_parts = dataclasses.replace(tile, splits=2)
    hold(with_parts, product, *operands(torch.float16, (33, k), (k, 64)))


def layouts(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Contiguous in k or not, on both sides; a stride everywhere; batches."""
    return a @ b, c.t() @ d.t(), a @ d.t(), c.t() @ b, a[:, ::2] @ b[::2], torch.stack([a, -a]) @ d.t()


@kinds
@pytest.mark.parametrize("size", [(32, 64, 32), (20, 36, 28)], ids=["whole", "fours"])
def test_layouts_and_widths(kind: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    hold(TILES[kind], layouts, *operands(torch.float16, (m, k), (k, n), (k, m), (n, k)))


@kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name_of)
def test_dtypes(kind: str, dtype: torch.dtype) -> None:
    if dtype == torch.float32 and kind != "register":
        pytest.skip("cooperative matrices are for 16-bit operands")

    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, a @ c.t()

    hold(TILES[kind], f, *operands(dtype, (33, 26), (26, 42), (40, 26)))


def epilogues(a: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.linear(a, w, bias)
    z = F.linear(a[:9], w)
    return F.silu(y) + r, z, z.relu(), (a[1:] @ w.t()).t() * 2


@kinds
@pytest.mark.parametrize("n", [36, 35])
def test_epilogues(kind: str, n: int) -> None:
    """Fused into the store of several results, into several stores, and into one that goes elsewhere."""
    args = operands(torch.float16, (20, 24), (n, 24), (n,), (20, n))
    g = hold(TILES[kind], epilogues, *args)
    assert dispatches(g, *on_device(args)) == 3


@kinds
@pytest.mark.parametrize("size", [(32, 64), (20, 36), (20, 35)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_inputs_of_an_epilogue(kind: str, size: tuple[int, int], dtype: torch.dtype) -> None:
    """As the result lies, by column, by row, in other dtypes, and of batches."""
    (m, n), k = size, 24

    def f(a: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, r: torch.Tensor, c: torch.Tensor) -> Any:
        y = F.gelu(F.linear(a, w, bias)) + r
        batched = torch.stack([a, -a]) @ w.t() * bias + torch.stack([r, r * 2]) - c
        return y, batched, (F.linear(a, w).float() * r.float()).to(y.dtype), (a @ w.t() + c) * bias

    hold(TILES[kind], f, *operands(dtype, (m, k), (n, k), (n,), (m, n), (m, 1)))


@kinds
def test_other_result_dtypes(kind: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = a @ b
        return y.float(), y > 0

    a, b = operands(torch.float16, (17, 24), (24, 36))
    with forced(TILES[kind]):
        got, positive = compiled(f)(*on_device([a, b]))
    want = a.double() @ b.double()
    same(got, want.float(), rtol=2e-3, atol=2e-3)
    assert torch.equal(positive.cpu(), got.cpu() > 0)


@kinds
@pytest.mark.parametrize("splits", [5])
def test_parts_of_the_sum(kind: str, splits: int) -> None:
    """Also more parts than there are steps; what follows is fused into their sum."""
    tile = dataclasses.replace(TILES[kind], splits=splits)

    def f(a: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(a, w, bias)) + r

    args = operands(torch.float16, (20, 56), (36, 56), (36,), (20, 36))
    g = hold(tile, f, *args)
    moved = on_device(args)
    assert dispatches(g, *moved) == 2
    first = g(*moved).cpu()
    assert all(torch.equal(g(*moved).cpu(), first) for _ in range(20))


@kinds
def test_infinities_and_nan_stay_in_their_row(kind: str) -> None:
    """What fills a tile beyond an edge is multiplied with nothing."""
    a, b = operands(torch.float16, (17, 18), (18, 33))
    a[3, 5], a[16, 17] = torch.inf, torch.nan
    b[:, 32] = 0
    with forced(TILES[kind]):
        got = compiled(product)(*on_device([a, b])).cpu()
    want = (a.double() @ b.double()).half()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())


@kinds
def test_sums_are_floats(kind: str) -> None:
    """Partial sums of 1e6 are infinite in float16; scaled back they are in range."""
    a, b = torch.full((17, 320), 60.0).half(), torch.full((320, 33), 60.0).half()
    hold(TILES[kind], lambda a, b: (a @ b) * (1 / 1024), a, b)
