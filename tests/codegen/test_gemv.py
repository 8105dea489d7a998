"""Products with 1 to 16 rows: every number of rows, edges of tiles, layouts, dtypes, epilogues; forced as on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cards import card
from compiled import check, compiled, copies, dispatches, name_of, on_device, same

import vkinductor
from vkinductor.codegen.gemm import choose, skinny
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.skinny import CANDIDATES, GemvColumnsTile, GemvTile
from vkinductor.codegen.gemm.tiles import Tile

TOLERANCE = {
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-4},
    torch.float64: {"rtol": 1e-7, "atol": 1e-7},
}
# Along k in teams smaller than, equal to and larger than a subgroup of 8; along n.
ROWS = (GemvTile(32, 4, 2, 2), GemvTile(16, 8, 4, 1), GemvTile(32, 32, 2, 4), GemvTile(32, 1, 1, 2))
# Against latency.
EAGER = tuple(
    GemvTile(*numbers, flat=True, own=True, direct=True)
    for numbers in ((32, 4, 2, 2), (16, 8, 1, 3), (32, 32, 2, 4), (32, 1, 1, 2))
)
COLUMNS = (GemvColumnsTile(32, 4, 1, 4), GemvColumnsTile(16, 16, 1, 2), GemvColumnsTile(64, 2, 3, 8))


def tile_id(tile: Tile) -> str:
    return f"{type(tile).__name__}-{'-'.join(map(str, dataclasses.astuple(tile)))}"


def rounded(f: Callable[..., Any], args: list[torch.Tensor]) -> Any:
    """``f`` in float64, rounded to the dtype of the arguments."""
    result = f(*[a.double() for a in args])
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(args[0].dtype), result)


def hold(tile: Tile, f: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Any:
    """Compile with ``tile`` and compare with float64."""
    with choose.forced(tile):
        return check(f, *args, expected=rounded(f, copies(args)), tolerance=TOLERANCE[args[0].dtype], **options)


def layers(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    return [F.linear(x[:, : w.shape[1]].contiguous(), w) for w in weights]


def right_products(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    return [x[:, : w.shape[0]].contiguous() @ w for w in weights]


def test_every_number_of_rows() -> None:
    """Small tiles: unrolled over 16 rows, kernels are slow to compile here."""

    def f(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [F.linear(x[:m], w) for m in range(1, 17)]

    def g(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [x[:m] @ w for m in (1, 2, 3, 5, 8, 11, 16)]

    x = torch.randn(16, 64)
    hold(GemvTile(32, 4, 1, 1), f, x, torch.randn(19, 64))
    hold(GemvColumnsTile(32, 4, 2, 2), g, x, torch.randn(64, 26))


@pytest.mark.parametrize("tile", ROWS + EAGER, ids=tile_id)
def test_edges_along_k(tile: GemvTile) -> None:
    """N around a workgroup's outputs; K around a load, a round of all lanes and a pass, odd ones read singly."""
    a_round, outputs = 4 * tile.lanes, tile.rows * tile.threads // tile.lanes
    a_pass = a_round * tile.loads
    ks = {1, 3, 4, a_round - 4, a_round, a_round + 4, a_pass - 4, a_pass, a_pass + 1, 2 * a_pass + 8}
    around = [1, outputs, outputs - 1, outputs + 1, 7] * 2
    weights = [torch.randn(n, k) for k, n in zip(sorted(ks - {0}), around, strict=False)]
    hold(tile, layers, torch.randn(3, max(ks)), *weights)


@pytest.mark.parametrize("tile", COLUMNS, ids=tile_id)
def test_edges_along_n(tile: GemvColumnsTile) -> None:
    columns, a_pass = 4 * tile.lanes, tile.threads // tile.lanes * tile.loads
    ks = {1, 2, 3, a_pass - 1, a_pass, a_pass + 1, 2 * a_pass + 4}
    ns = [columns, columns - 4, columns + 4, 2 * columns + 2, 6, columns + 1, 4]
    hold(
        tile,
        right_products,
        torch.randn(3, max(ks)),
        *[torch.randn(k, n) for k, n in zip(sorted(ks), ns, strict=False)],
    )


@pytest.mark.parametrize("tile", [ROWS[1], COLUMNS[0]], ids=tile_id)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=name_of)
def test_floats(dtype: torch.dtype, tile: Tile) -> None:
    f, turn = (layers, torch.clone) if tile in ROWS else (right_products, lambda w: w.t().contiguous())
    sizes = ((16, 64), (12, 68), (10, 66), (5, 67))
    hold(tile, f, torch.randn(3, 68).to(dtype), *[turn(torch.randn(n, k).to(dtype)) for n, k in sizes])


INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("tile", [ROWS[1], COLUMNS[0]], ids=tile_id)
@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_integers(dtype: torch.dtype, tile: Tile) -> None:
    """Sums wrap as the dtype does, before what is fused with them."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ w
        return y, (x @ w).to(torch.int32) + 1

    low = -100 if dtype.is_signed else 0
    x, w = (torch.randint(low, 100, s).to(dtype) for s in ((2, 80), (80, 32)))
    with choose.forced(tile):
        check(f, x, w.t().contiguous().t() if tile in ROWS else w)


def test_layouts() -> None:
    """Weights and x across, strided, offset so that no wide load is aligned, broadcast, batched."""
    base, other = torch.randn(3, 70, 72), torch.randn(3, 70, 72)

    def f(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [
            a[0, :4] @ b[0].t(),
            a[0, :4, 1:70] @ b[0, :, 1:70].t(),
            a[0, 3:7, :64] @ b[1, 5:33, 4:68].t(),
            a[0, :4, ::2] @ b[0, :9, ::2].t(),
            a[0].t()[:5] @ b[0].t().contiguous().t().reshape(72, 70).t(),
            torch.bmm(a[:, :2], b.mT),
            torch.bmm(a[:1, :2].expand(3, 2, 72), b[:, ::3].mT),
            torch.bmm(a[:, :1], b[:1].expand(3, 70, 72).mT),
            a[0] @ b[0, 0:1].t(),
            a[0] @ b[0, :3].t(),
            a[:, ::2, 8:] @ b[0, 7, 8:, None],
        ]

    def g(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [
            a[0, :4, :70] @ b[0],
            a[0, :4, 1:70] @ b[0, 1:, 1:71],
            a[0, :4, :70] @ b[0, :, 4:68],
            a[0].t()[:5] @ b[0],
            a[0, :4, 0:70:2] @ b[0, ::2],
            torch.bmm(a[:, :2, :70], b),
            torch.bmm(a[:1, :2, 2:].expand(3, 2, 70), b[:, :, :24]),
            a[0].t() @ b[0, :, 3:7],
        ]

    hold(ROWS[0], f, base, other)
    hold(COLUMNS[0], g, base, other)


def test_rows_and_columns_that_vary() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.linear(x, w).relu(), x.t() @ w.t()[:1]

    for tile, turned in ((ROWS[0], False), (COLUMNS[0], True)):

        def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return (x @ w).relu()

        torch._dynamo.reset()
        with choose.forced(tile):
            g = torch.compile(product, backend="vulkan", fullgraph=True, dynamic=True)
            for m, n, k in ((5, 9, 40), (3, 33, 77), (8, 18, 129), (13, 64, 200), (2, 700, 3)):
                x, w = torch.randn(m, k), torch.randn(k, n) if turned else torch.randn(n, k).t()
                same(g(*on_device([x, w])), product(x, w), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("tile", [ROWS[2], GemvTile(32, 32, 1, 2)], ids=tile_id)
def test_without_subgroup_arithmetic(tile: GemvTile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GemvTile, "cluster", lambda *a: 1)
    hold(tile, layers, torch.randn(2, 264), torch.randn(9, 264), torch.randn(4, 33))


EPILOGUES: dict[str, Callable[..., torch.Tensor]] = {
    "bias": lambda y, r, b: y + b,
    "gelu": lambda y, r, b: F.gelu(y + b, approximate="tanh"),
    "residual": lambda y, r, b: F.silu(y) * 0.5 + r,
    "cast": lambda y, r, b: (y + b).to(torch.float16),
    "mask": lambda y, r, b: torch.where(r > 0, y, -1.0),
    "two results": lambda y, r, b: (y + r, y * b),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_are_part_of_the_kernel(name: str) -> None:
    for tile, x_first in ((ROWS[0], True), (ROWS[0], False), (EAGER[1], False), (COLUMNS[1], True)):
        torch._dynamo.reset()

        def f(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> Any:
            return EPILOGUES[name](x @ w, r, b)

        x, w = torch.randn(3, 40), torch.randn(40, 20) if tile in COLUMNS else torch.randn(20, 40).t()
        x, w = (x, w) if x_first else (w.t(), x.t())
        args = [x, w, torch.randn(x.shape[0], w.shape[1]), torch.randn(w.shape[1])]
        with choose.forced(tile):
            g = compiled(f)
            moved = on_device(args)
            same(g(*moved), f(*copies(args)), rtol=2e-3 if name == "cast" else 1e-5, atol=1e-4)
            assert dispatches(g, *moved) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("tile", [ROWS[2], COLUMNS[0]], ids=tile_id)
def test_long_half_products_do_not_overflow(dtype: torch.dtype, tile: Tile) -> None:
    """K = 4096 with values near 30: partial sums of 3.7e6 are infinite in float16; scaled back they are in range."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b) * (1 / 4096)

    a, b = torch.full((5, 4096), 30.0, dtype=dtype), torch.full((4096, 32), 30.0, dtype=dtype)
    b = b.t().contiguous().t() if tile in ROWS else b
    hold(tile, f, a, b)
    signs = torch.where(torch.arange(4096) % 2 == 0, 1.0, -1.0).to(dtype)
    with choose.forced(tile):
        same(compiled(f)(*on_device([a * signs, b])), torch.zeros(5, 32, dtype=dtype))


@pytest.mark.parametrize("tile", [ROWS[0], COLUMNS[0]], ids=tile_id)
def test_what_is_not_finite_stays_in_its_place(tile: Tile) -> None:
    """Edges are read again by lanes and rows past them: no NaN may come from there, none be lost."""
    x, w = torch.randn(2, 44), torch.randn(44, 12)
    x[0, 43], w[43, 11], w[2, 3], w[5, 4], x[1, 7] = torch.inf, torch.nan, torch.inf, -torch.inf, torch.nan
    w[43, 1] = 0.0
    hold(tile, torch.matmul, x, w.t().contiguous().t() if tile in ROWS else w)


def test_subnormal_halves() -> None:
    x, w = torch.full((1, 64), 512.0).half(), torch.full((8, 64), 2.0**-24).half()
    w[:, ::2] *= 3
    hold(ROWS[0], F.linear, x, w)


@pytest.mark.parametrize("tile", [ROWS[2], COLUMNS[0]], ids=tile_id)
def test_repeats_are_equal_bit_by_bit(tile: Tile) -> None:
    x, w = torch.randn(4, 520).half(), torch.randn(520, 64).half()
    w = w.t().contiguous().t() if tile in ROWS else w
    with choose.forced(tile):
        g, args = compiled(torch.matmul), on_device([x, w])
        first = g(*args).cpu()
        assert all(torch.equal(g(*args).cpu(), first) for _ in range(100))


def problems() -> list[Problem]:
    sizes = [
        (1, m, n, k) for m in (1, 3, 8, 16) for n, k in ((576, 576), (2048, 2048), (128256, 2048), (40, 9), (4, 14336))
    ]
    sizes += [(64, 1, 8192, 128), (64, 4, 128, 8192), (1, 4096, 1, 4096)]
    return [
        Problem(*size, dtype, a_contiguous="k", b_contiguous=along, a_width=width, b_width=width)
        for size in sizes
        for dtype in (torch.float16, torch.float32, torch.float64, torch.int8)
        for along in ("k", "n")
        for width in (1, 16 // dtype.itemsize)
    ]


@pytest.mark.parametrize("kib", [16, 48])
def test_choice_fits_a_gpu(kib: int) -> None:
    """On a GPU every skinny product has a skinny tile, within the limits, from the few that any device has on."""
    info = vkinductor.device_info()
    for subgroup, most in ((1, 128), (32, 1024), (64, 256)):
        limits = dataclasses.replace(
            info.limits,
            max_shared_memory=kib << 10,
            max_workgroup_invocations=most,
            subgroup_size=subgroup,
            subgroup_size_min=subgroup,
            subgroup_size_max=subgroup,
        )
        # Sixteen rows of halves would take matrices where the device has them.
        features = dataclasses.replace(info.features, cooperative_matrix=False, cooperative_matrix2=False)
        gpu = dataclasses.replace(info, limits=limits, features=features, kind="discrete")
        for problem in problems():
            tiles = choose.candidates(gpu, problem)
            assert isinstance(tiles[0], skinny.SkinnyTile), problem
            assert all(tile.fits(gpu, problem) for tile in tiles)
            assert len(set(tiles)) == len(tiles)
    assert not skinny.candidates(info, Problem(1, 64, 64, 64, torch.float32))


def test_whole_rows_in_a_pass_where_weights_are_few() -> None:
    """One row against few weights on a GPU: nothing is read twice over while the dispatch before is waited for."""
    gpu = card()

    def best(m: int, n: int, k: int) -> Tile:
        problem = Problem(1, m, n, k, torch.float16, a_contiguous="k", b_contiguous="k", a_width=8, b_width=8)
        return skinny.candidates(gpu, problem)[0]

    assert best(1, 576, 576) == GemvTile(256, 128, 1, 1, flat=True, own=True)
    assert best(1, 576, 1536) == GemvTile(256, 128, 1, 2, flat=True, own=True)
    assert best(1, 2048, 2048) == GemvTile(256, 64, 1, 2, own=True)
    assert best(8, 576, 576) == GemvTile(128, 32, 1, 2)


def test_every_candidate_fits_something() -> None:
    fitting = problems()
    assert all(any(tile.fits(vkinductor.device_info(), problem) for problem in fitting) for tile in CANDIDATES)
