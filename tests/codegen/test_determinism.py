"""The same kernel over the same data a hundred times gives bitwise the same result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, on_device

from vkinductor.codegen import heuristics
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.tiles import TILED, DirectTile, Tile


def repeat(f: Callable[..., torch.Tensor], *args: torch.Tensor) -> None:
    g, moved = compiled(f), on_device(args)
    first = g(*moved)
    different = sum(not torch.equal(g(*moved).cpu(), first.cpu()) for _ in range(99))
    assert different == 0
    assert bool(first.cpu().isfinite().all())


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


@pytest.mark.parametrize(("lanes", "elements"), [(64, 0), (128, 8)])
@pytest.mark.parametrize("f", [softmax, layer_norm], ids=lambda f: f.__name__)
def test_reductions(f: Callable[[torch.Tensor], torch.Tensor], lanes: int, elements: int) -> None:
    with heuristics.override(lanes=lanes, rows=1, elements=elements):
        repeat(f, torch.randn(37, 1000))


@pytest.mark.parametrize(
    "tile",
    [TILED[-1], DirectTile(tm=2, tn=2, lanes=16, blocks=4), DirectTile(tm=4, tn=4)],
    ids=["tiled", "lanes", "direct"],
)
def test_linear(tile: Tile) -> None:
    with forced(tile):
        repeat(F.linear, torch.randn(33, 100), torch.randn(47, 100))
