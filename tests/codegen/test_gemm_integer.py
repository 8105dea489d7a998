"""Products of 8-bit integers: each kind of tile, exact to the bit, with what is fused into their stores."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, copies, dispatches, on_device, same

from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.cooperative import WorkgroupTile
from vkinductor.codegen.gemm.integer import PackedSubgroupTile, PackedTile
from vkinductor.codegen.gemm.skinny import GemvColumnsTile, GemvTile
from vkinductor.codegen.gemm.tiles import DirectTile, Tile, TiledTile

TILES: dict[str, Tile] = {
    "subgroup": PackedSubgroupTile(16, 32, 32, 16, 16, (8, 8, 16), emulated=8),
    "workgroup": WorkgroupTile(16, 32, 16, threads=64, emulated=1),
    "dot": PackedTile(16, 32, 32, 4, 4),
    "plain": PackedTile(16, 32, 16, 4, 4, dot=False),
    "tiled": TiledTile(tm=4, tn=2, bm=16, bn=32, bk=16),
    "direct": DirectTile(tm=4, tn=4, lanes=1, blocks=8),
}
kinds = pytest.mark.parametrize("kind", TILES)


def eights(*shape: int) -> torch.Tensor:
    """Every value, the extremes among them."""
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(a, b)


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.long() @ b.long()).int()


def hold(tile: Tile, f: Callable[..., Any], *args: torch.Tensor) -> Callable[..., Any]:
    """Compile ``f`` with ``tile`` and compare with the CPU; returns what was compiled."""
    g = compiled(f, dynamic=False)
    with forced(tile):
        same(g(*on_device(args)), f(*copies(args)))
    return g


@kinds
def test_sizes_that_vary(kind: str) -> None:
    """One kernel for sizes below, at and above the edges of tiles."""
    g = torch.compile(product, backend="vulkan", fullgraph=True, dynamic=True)
    with forced(TILES[kind]):
        for m, n, k in itertools.product((2, 15, 16, 17, 130), (3, 31, 32, 33), (2, 15, 16, 33, 70)):
            a, b = eights(m, k), eights(k, n)
            same(g(*on_device([a, b])), exact(a, b))


def layouts(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Contiguous in k or not, on both sides; a stride everywhere; nothing aligned."""
    return (
        torch._int_mm(a, b),
        torch._int_mm(c.t(), d.t()),
        torch._int_mm(a, d.t()),
        torch._int_mm(c.t(), b),
        torch._int_mm(a[:, ::2], b[::2]),
        torch._int_mm(a[1:, 1:], b[1:, 1:]),
        torch._int_mm(c[1:, 1:].t(), d[1:, 1:].t()),
    )


@kinds
@pytest.mark.parametrize("size", [(32, 64, 32), (20, 36, 28), (18, 34, 50), (7, 9, 5)], ids=["whole", "fours", "twos", "odd"])
def test_layouts_and_widths(kind: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    hold(TILES[kind], layouts, eights(m, k), eights(k, n), eights(k, m), eights(n, k))


def test_rows_by_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows: as many bytes as both operands have side by side, whatever the driver says of its speed."""
    monkeypatch.setattr("vkinductor.codegen.gemm.skinny.has_dot_product", lambda info: True)

    def f(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [torch._int_mm(x[:, : w.shape[1]], w.t()) for w in weights]

    for tile in (GemvTile(32, 4, 2, 2), GemvTile(32, 32, 1, 4)):
        torch._dynamo.reset()
        hold(tile, f, eights(3, 80), *[eights(n, k) for n, k in ((9, 80), (17, 72), (5, 36), (4, 35), (3, 2))])
