"""Products that compute an operand while they load it: one kernel, and when it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cards import card
from compiled import compiled, dispatches, name_of, on_device, same

from vkinductor.codegen.gemm.choose import computed_operands, forced
from vkinductor.codegen.gemm.cooperative import SubgroupTile, WorkgroupTile
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.tiles import DirectTile, RegisterTile, Tile, TiledTile

TILES: dict[str, Tile] = {
    "direct": DirectTile(tm=4, tn=4, blocks=16),
    "tiled": TiledTile(4, 2, 32, 32, 16),
    "register": RegisterTile(16, 32, 8, 4, 4),
    "subgroup": SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8),
}
TOLERANCE = {
    torch.float16: {"rtol": 2e-3, "atol": 5e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 4e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-4},
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
}
kinds = pytest.mark.parametrize("kind", TILES)


def hold(tile: Tile, f: Callable[..., Any], kernels: int, *args: torch.Tensor, **options: Any) -> Callable[..., Any]:
    """Compile ``f`` with ``tile``; hold its number of kernels, and its result to that of float64."""
    moved = on_device(args)
    g = compiled(f, **options)
    with forced(tile):
        got = g(*moved)
        assert dispatches(g, *moved) == kernels
    want = f(*[a.double() if a.is_floating_point() else a for a in args])
    dtype = args[0].dtype
    same(got, torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype), want), **TOLERANCE[dtype])
    return g


def dequantized(a: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """An activation of one operand, bytes times a scale for each row as the other, in nn.Linear's layout."""
    return torch.relu(a) @ (w.to(a.dtype) * scale).t()


@kinds
@pytest.mark.parametrize("dtype", TOLERANCE, ids=name_of)
@pytest.mark.parametrize("size", [(32, 64, 48), (20, 35, 27)], ids=["whole", "odd"])
def test_both_operands(kind: str, dtype: torch.dtype, size: tuple[int, int, int]) -> None:
    if not TILES[kind].fits(card(), Problem(1, *size, dtype)):
        pytest.skip("the tile is not for this dtype")
    m, n, k = size
    a, w, scale = torch.randn(m, k), torch.randint(-100, 100, (n, k), dtype=torch.int8), torch.rand(n, 1) * 0.01
    hold(TILES[kind], dequantized, 1, a.to(dtype), w, scale.to(dtype), dynamic=False)


@kinds
def test_layouts_and_batches(kind: str) -> None:
    """Operands contiguous in the other dimension, views of what is computed, an epilogue with a prologue's input."""

    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(a.transpose(1, 2)) @ (b * 2) + b[:, :20], (c * 2)[2:22].t() @ (-c).t()[:20, :].t().t()

    a, b, c = torch.randn(3, 24, 20), torch.randn(3, 24, 40), torch.randn(22, 20)
    hold(TILES[kind], f, 2, a.half(), b.half(), c.half(), dynamic=False)


@kinds
def test_sizes_that_vary(kind: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.sigmoid() @ (b * 0.5)

    g = torch.compile(f, backend="vulkan", fullgraph=True, dynamic=True)
    with forced(TILES[kind]):
        for m, n, k in ((5, 9, 7), (16, 32, 16), (33, 31, 40)):
            a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
            moved = on_device([a, b])
            same(g(*moved), f(a.double(), b.double()).half(), **TOLERANCE[torch.float16])
            assert dispatches(g, *moved) == 1


@pytest.mark.parametrize("kind", ["register", "subgroup"])
def test_parts_of_the_sum(kind: str) -> None:
    tile = dataclasses.replace(TILES[kind], splits=3)
    a, w, scale = torch.randn(20, 56), torch.randint(-100, 100, (36, 56), dtype=torch.int8), torch.rand(36, 1) * 0.01
    hold(tile, dequantized, 2, a.half(), w, scale.half(), dynamic=False)


def test_infinities_beyond_the_edge() -> None:
    """What a prologue makes of the zeros beyond an edge is multiplied with nothing."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.reciprocal() @ b

    for kind in TILES:
        hold(TILES[kind], f, 1, torch.randn(17, 18).abs().half() + 1, torch.randn(18, 33).half(), dynamic=False)


def test_what_has_other_uses_is_computed_once() -> None:
    def used(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(a)
        return y @ b, y

    def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.relu(a)
        return y @ y.t() @ b

    a, b = torch.randn(16, 32), torch.randn(32, 8)
    hold(TILES["tiled"], used, 2, a, b, dynamic=False)
    hold(TILES["tiled"], twice, 3, a, torch.randn(16, 8), dynamic=False)


def test_inputs_that_change() -> None:
    """The operand is what it was before its input was written."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.relu(a)
        a.add_(1)
        return y @ b + a.sum()

    a, b = torch.randn(16, 32), torch.randn(32, 8)
    da, db = on_device([a, b])
    with forced(TILES["tiled"]):
        got = compiled(f, dynamic=False)(da, db)
    same(got, f(a, b), rtol=1e-4, atol=1e-4)
    same(da, a)


def test_matrices_of_a_workgroup_take_what_lies_in_memory() -> None:
    hold(
        WorkgroupTile(16, 32, 16, threads=64, emulated=1),
        lambda a, b: torch.relu(a) @ b,
        2,
        torch.randn(16, 32).half(),
        torch.randn(32, 32).half(),
        dynamic=False,
    )


@pytest.mark.parametrize(
    ("m", "n", "k", "a", "b", "expected"),
    [
        (128, 4096, 4096, 0, 4, (False, True)),  # weights that one row of blocks reads: nothing is computed again
        (4096, 4096, 4096, 0, 4, (False, False)),  # 32 rows of blocks
        (4096, 64, 1024, 3, 0, (True, False)),
        (64, 64, 1024, 3, 3, (True, True)),
        (1, 4096, 11008, 35, 0, (False, False)),  # few rows have tiles of their own
        (8, 4096, 4096, 0, 4, (False, False)),
    ],
)
def test_cost(m: int, n: int, k: int, a: int, b: int, expected: tuple[bool, bool]) -> None:
    problem = Problem(1, m, n, k, torch.float16, b_contiguous="k", a_width=8, b_width=8, a_operations=a, b_operations=b)
    assert computed_operands(card(), problem) == expected
