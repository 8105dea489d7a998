"""Products of 8-bit integers: each kind of tile, exact to the bit, with what is fused into their stores."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, copies, dispatches, name_of, on_device, same

import vkinductor
from vkinductor.codegen.gemm import integer
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.cooperative import WorkgroupTile
from vkinductor.codegen.gemm.integer import PackedSubgroupTile, PackedTile
from vkinductor.codegen.gemm.skinny import GemvColumnsTile, GemvTile
from vkinductor.codegen.gemm.tiles import DirectTile, Tile, TiledTile

TILES: dict[str, Tile] = {
    "subgroup": PackedSubgroupTile(16, 32, 32, 16, 16, (8, 8, 16), emulated=8),
    "native": PackedSubgroupTile(16, 32, 32, 16, 16, (8, 8, 16)),
    "workgroup": WorkgroupTile(16, 32, 16, threads=64, emulated=1),
    "dot": PackedTile(16, 32, 32, 4, 4),
    "plain": PackedTile(16, 32, 16, 4, 4, dot=False),
    "tiled": TiledTile(tm=4, tn=2, bm=16, bn=32, bk=16),
    "direct": DirectTile(tm=4, tn=4, lanes=1, blocks=8),
}


def kinds(*names: str) -> Any:
    return pytest.mark.parametrize("kind", names or tuple(TILES))


@pytest.fixture(autouse=True)
def _shapes(request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params.get("kind") if hasattr(request.node, "callspec") else None
    if kind == "native" and TILES[kind].shape not in integer.packed_shapes(vkinductor.device_info()):
        pytest.skip("the device has no matrices of 8-bit integers of this shape")


def eights(*shape: int) -> torch.Tensor:
    """Every value, the extremes among them."""
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.long() @ b.long()).int()


def hold(tile: Tile, f: Callable[..., Any], *args: torch.Tensor, expected: Any = None) -> Callable[..., Any]:
    """Compile ``f`` with ``tile`` and compare with the CPU; returns what was compiled."""
    g = compiled(f, dynamic=False)
    with forced(tile):
        same(g(*on_device(args)), f(*copies(args)) if expected is None else expected)
    return g


@kinds()
def test_sizes_that_vary(kind: str) -> None:
    """One kernel for sizes below, at and above the edges of tiles."""
    g = torch.compile(torch._int_mm, backend="vulkan", fullgraph=True, dynamic=True)
    with forced(TILES[kind]):
        for m, n, k in itertools.product((2, 16, 17, 130), (3, 32, 33), (2, 15, 16, 33, 70)):
            a, b = eights(m, k), eights(k, n)
            same(g(*on_device([a, b])), exact(a, b))


def layouts(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Contiguous in k or not, on both sides; a stride everywhere."""
    return torch._int_mm(a, b), torch._int_mm(c.t(), d.t()), torch._int_mm(a[:, ::2], b[::2])


def offsets(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Nothing aligned."""
    return torch._int_mm(a[1:, 1:], b[1:, 1:]), torch._int_mm(c[1:, 1:].t(), d[1:, 1:].t())


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *itertools.product(TILES, [(32, 64, 32)]),
        *itertools.product(("subgroup", "native", "dot"), [(20, 36, 28), (18, 34, 50), (7, 9, 5)]),
    ],
    ids=str,
)
def test_layouts_and_widths(kind: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    args = eights(m, k), eights(k, n), eights(k, m), eights(n, k)
    hold(TILES[kind], layouts, *args, expected=tuple(exact(*pair) for pair in operands(layouts, args)))
    if size == (32, 64, 32):
        hold(TILES[kind], offsets, *args, expected=tuple(exact(*pair) for pair in operands(offsets, args)))


def operands(f: Callable[..., Any], args: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What ``f`` multiplies: the CPU's own product refuses some strides."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_int_mm", lambda a, b: pairs.append((a, b)))
        f(*args)
    return pairs


def scaled(
    a: torch.Tensor, w: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, bias: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """A dynamically quantised layer, its result quantised again, and one that is used twice and lies elsewhere."""
    y = torch._int_mm(a, w.t())
    x = y.float() * rows * columns
    z = torch._int_mm(a[:9], w.t())
    quantised = (torch._int_mm(a[:10], w.t()) * 3e-4).round().clamp(-128, 127).to(torch.int8)
    return F.gelu(x + bias).to(r.dtype) + r, z, (z > 0).t(), quantised


@pytest.mark.parametrize(
    ("kind", "n", "dtype"),
    [
        *[(kind, 36, torch.float16) for kind in TILES],
        *[(kind, *more) for kind in ("subgroup", "native") for more in ((35, torch.float32), (32, torch.bfloat16))],
    ],
    ids=str,
)
def test_epilogues(kind: str, n: int, dtype: torch.dtype) -> None:
    """Fused into the stores: scales of rows and of columns, bias, activation, residual, conversions."""
    a, w = eights(20, 24), eights(n, 24)
    args = a, w, torch.rand(20, 1) / 512, torch.rand(n) / 16, torch.randn(n), torch.randn(20, n).to(dtype)
    g = compiled(scaled, dynamic=False)
    moved = on_device(args)
    with forced(TILES[kind]):
        got = g(*moved)
    tolerance = {"rtol": 1.6e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 2e-3, "atol": 2e-3}
    same(got, scaled(*copies(args)), **tolerance)
    assert dispatches(g, *moved) == 3


@kinds()
def test_sums_of_eight_bits_wrap(kind: str) -> None:
    """aten.mm of int8 is int8: it wraps before what is fused with it."""

    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, (a @ b[:, :9]).to(torch.int32) + 1, (torch.stack([a, a]) @ b).float() * 0.5

    hold(TILES[kind], f, eights(17, 40), eights(40, 36))


@kinds("subgroup", "native", "workgroup", "dot")
def test_parts_of_the_sum(kind: str) -> None:
    """Also more parts than there are steps; what follows is fused into their sum, which is one of integers."""
    tile = dataclasses.replace(TILES[kind], splits=5)
    a, w = torch.full((20, 1200), 127, dtype=torch.int8), torch.full((36, 1200), 127, dtype=torch.int8)
    w[::2, 7] = 126

    def f(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(a, w.t()) + 1

    g = hold(tile, f, a, w)
    assert dispatches(g, *on_device([a, w])) == 2


def test_unsigned_first_operand() -> None:
    a, b = torch.randint(0, 256, (5, 33), dtype=torch.uint8), eights(33, 20)
    hold(TILES["direct"], torch._int_mm, a, b, expected=exact(a, b))


def test_empty_products() -> None:
    a, b = eights(5, 0), eights(0, 3)
    same(compiled(torch._int_mm)(*on_device([a, b])), torch.zeros(5, 3, dtype=torch.int32))


def test_eager_products_stay_on_the_device() -> None:
    a, b = eights(17, 33), eights(33, 20)
    vkinductor.reset_stats()
    got = torch._int_mm(*on_device([a, b]))
    assert not vkinductor.stats()["fallbacks"]
    same(got, exact(a, b))


def test_rows_by_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows: as many bytes as both operands have side by side, whatever the driver says of its speed."""
    monkeypatch.setattr("vkinductor.codegen.gemm.skinny.has_dot_product", lambda info: True)

    def f(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [torch._int_mm(x[:, : w.shape[1]], w.t()) for w in weights]

    for tile in (GemvTile(32, 4, 2, 2), GemvTile(32, 32, 1, 4)):
        torch._dynamo.reset()
        hold(tile, f, eights(3, 80), *[eights(n, k) for n, k in ((9, 80), (17, 72), (5, 36), (4, 35), (3, 2))])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=name_of)
@pytest.mark.parametrize("size", [(40, 80), (33, 36), (7, 13)], ids=str)
def test_weights_of_eight_bits(size: tuple[int, int], dtype: torch.dtype) -> None:
    """x @ w.to(x.dtype) * scales of few rows: weights are read as they lie, by one kernel."""
    n, k = size

    def linear(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w.to(x.dtype)) * s

    def columns(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, w.to(x.dtype)) * s

    w = eights(n, k)
    x, s = torch.randn(3, k).to(dtype), (torch.rand(n) / 64).to(dtype)
    want = ((x.double() @ w.double().t()).to(dtype) * s).to(dtype)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}[dtype]
    rows, across = GemvTile(32, 8, 2, 2), GemvColumnsTile(32, 4, 1, 4)
    cases = [
        (linear, w, rows),
        (torch.ops.aten._weight_int8pack_mm.default, w, rows),
        (columns, w.t().contiguous(), across),
    ]
    for f, weights, tile in cases:
        torch._dynamo.reset()
        g, moved = torch.compile(f, backend="vulkan", dynamic=False), on_device([x, weights, s])
        with forced(tile):
            same(g(*moved), want, rtol=tolerance, atol=tolerance)
        assert dispatches(g, *moved) == 1
