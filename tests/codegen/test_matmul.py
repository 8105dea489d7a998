"""Matrix products: every dtype, tile and odd size, strided operands, epilogues, limits of the device."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import FLOATS, check, compiled, copies, dispatches, name_of, on_device, same

from vkinductor.codegen.gemm.choose import candidates, forced
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.tiles import TILED, DirectTile, Tile, TiledTile

ODD = (1, 3, 127, 128, 129)
TOLERANCE = {
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-4},
    torch.float64: {"rtol": 1e-7, "atol": 1e-7},
}


def exact(f: Callable[..., Any], args: list[torch.Tensor]) -> Any:
    """``f`` in float64, rounded to the dtype of the arguments."""
    dtype = args[0].dtype
    result = f(*[a.double() for a in args])
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype), result)


def hold(f: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Any:
    """Compile and compare with float64."""
    dtype = args[0].dtype
    return check(f, *args, expected=exact(f, list(args)), tolerance=TOLERANCE[dtype], **options)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_odd_sizes(dtype: torch.dtype) -> None:
    """Every combination of odd M, N and K through one program with symbolic sizes, and through static ones."""
    g = torch.compile(product, backend="vulkan", fullgraph=True, dynamic=True)
    for m in ODD:
        for n in ODD:
            for k in ODD:
                a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
                same(g(*on_device([a, b])), exact(product, [a, b]), **TOLERANCE[dtype])


@pytest.mark.parametrize(("m", "n", "k"), [(1, 3, 127), (3, 1, 129), (127, 129, 1), (1, 1, 1), (129, 1, 3)])
def test_odd_static_sizes(m: int, n: int, k: int) -> None:
    hold(product, torch.randn(m, k), torch.randn(k, n))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.uint8, torch.int16], ids=name_of)
def test_integers(dtype: torch.dtype) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, torch.bmm(a[None], b[None]) * 2

    low = -7 if dtype.is_signed else 0
    check(f, torch.randint(low, 9, (5, 33)).to(dtype), torch.randint(low, 9, (33, 7)).to(dtype))


def test_every_form_of_product() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor, c: torch.Tensor, v: torch.Tensor) -> dict[str, Any]:
        return {
            "mm": a[0] @ b[0],
            "bmm": torch.bmm(a, b),
            "matmul": a @ b[0],
            "broadcast": a[:, None] @ b[None],
            "addmm": torch.addmm(c, a[0], b[0]),
            "addmm_scaled": torch.addmm(c, a[0], b[0], beta=0.5, alpha=2.0),
            "addmm_vector": torch.addmm(c[0], a[0], b[0]),
            "addmm_unread": torch.addmm(torch.full_like(c, torch.nan), a[0], b[0], beta=0),
            "baddbmm": torch.baddbmm(c.expand(3, -1, -1), a, b, beta=2.0, alpha=0.5),
            "linear": F.linear(a, w, c[0]),
            "mv": a[0] @ v,
            "vm": v[: a.shape[1]] @ a[0],
            "dot": v @ v,
            "outer": torch.outer(v, v),
            "einsum": torch.einsum("bij,bjk->bik", a, b),
            "bilinear": torch.einsum("bij,kj,bil->bkl", a, w, a),
        }

    hold(f, torch.randn(3, 9, 20), torch.randn(3, 20, 11), torch.randn(11, 20), torch.randn(9, 11), torch.randn(20))


@pytest.mark.parametrize("kind", ["direct", "tiled", "lanes"])
def test_transposed_and_strided_operands(kind: str) -> None:
    tile = {
        "direct": DirectTile(tm=4, tn=4, blocks=16),
        "tiled": TILED[-1],
        "lanes": DirectTile(tm=2, tn=2, lanes=8, blocks=4),
    }[kind]
    base, other = torch.randn(3, 60, 60), torch.randn(3, 60, 60)
    views = [
        (base[:, :33, :20], other[:, :20, :17]),
        (base[:, :20, :33].mT, other[:, :17, :20].mT),
        (base[:, ::2, 1::3], other[:, 5:25, ::4]),
        (base.permute(1, 0, 2)[:3, :, :20], other[:, :20, 7:20]),
        (base[:1, :9, :20].expand(3, 9, 20), other[:, :20, :1].expand(3, 20, 5)),
    ]

    def f(*operands: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(operands[::2], operands[1::2], strict=True)
        return [r for a, b in pairs for r in (torch.bmm(a, b), a[1] @ b[2])]

    operands = [operand for pair in views for operand in pair]
    with forced(tile):
        hold(f, *operands)


TILES = [
    *TILED,
    TiledTile(tm=1, tn=1, bm=8, bn=8, bk=4),
    DirectTile(tm=1, tn=1, lanes=1, blocks=64),
    DirectTile(tm=4, tn=4, lanes=1, blocks=16),
    DirectTile(tm=2, tn=1, lanes=1, blocks=128),
    DirectTile(tm=1, tn=2, lanes=64, blocks=2),
    DirectTile(tm=8, tn=2, lanes=16, blocks=8),
    DirectTile(tm=4, tn=4, lanes=4, blocks=1),
]


def tile_id(tile: Tile | None) -> str:
    if tile is None:
        return "chosen"
    return "-".join([type(tile).__name__, *map(str, dataclasses.astuple(tile))])


def hold_tile(tile: Tile, dtype: torch.dtype) -> None:
    """Sizes below, at and above a tile; epilogue and batch included."""

    def f(a: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.silu(torch.bmm(a, b)) * 2 + r, b[1].t() @ a[0].t()

    for m, n, k in ((5, 3, 7), (70, 129, 65)):
        torch._dynamo.reset()
        args = [torch.randn(2, m, k), torch.randn(2, k, n), torch.randn(2, m, n)]
        with forced(tile):
            hold(f, *[a.to(dtype) for a in args])


@pytest.mark.parametrize("tile", TILES, ids=tile_id)
def test_every_tile(tile: Tile) -> None:
    hold_tile(tile, torch.float32)


@pytest.mark.parametrize("tile", [TILES[2], TILES[5], TILES[7]], ids=tile_id)
def test_tiles_in_half_precision(tile: Tile) -> None:
    hold_tile(tile, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("tile", [TILES[2], TILES[7], None], ids=tile_id)
def test_long_half_products_do_not_overflow(dtype: torch.dtype, tile: Tile | None) -> None:
    """K = 4096 with values near 30: partial sums of 3.7e6 are infinite in float16; scaled back they are in range."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b) * (1 / 4096)

    a = torch.full((5, 4096), 30.0, dtype=dtype)
    b = torch.full((4096, 6), 30.0, dtype=dtype)
    signs = torch.where(torch.arange(4096) % 2 == 0, 1.0, -1.0).to(dtype)
    with contextlib.nullcontext() if tile is None else forced(tile):
        hold(f, a, b)
        same(compiled(product)(*on_device([a * signs, b])), torch.zeros(5, 6, dtype=dtype))


EPILOGUES: dict[str, Callable[..., torch.Tensor]] = {
    "bias": lambda y, r, b: y + b,
    "gelu": lambda y, r, b: F.gelu(y + b, approximate="tanh"),
    "residual": lambda y, r, b: y * 0.5 + r,
    "cast": lambda y, r, b: (y + b).to(torch.float64),
    "mask": lambda y, r, b: torch.where(r > 0, y, -1.0),
    "iota": lambda y, r, b: y + torch.arange(y.shape[-1], device=y.device),
    "transposed": lambda y, r, b: y.t() * 2,
    "sliced": lambda y, r, b: F.pad(y, (1, 0)) + 1,
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str) -> None:
    def f(a: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return EPILOGUES[name](a @ w.t(), r, b)

    args = [torch.randn(33, 20), torch.randn(17, 20), torch.randn(33, 17), torch.randn(17)]
    g = compiled(f)
    moved = on_device(args)
    same(g(*moved), f(*copies(args)), rtol=1e-5, atol=1e-4)
    if name not in ("sliced", "transposed"):
        assert dispatches(g, *moved) == 1


def test_empty_operands() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, b.t() @ a.t(), torch.addmm(c, a.new_zeros(4, 0), a.new_zeros(0, 5)), a.new_zeros(0, 3) @ c[:3]

    check(f, torch.empty(4, 0), torch.empty(0, 5), torch.randn(4, 5))


@pytest.mark.parametrize("kib", [16, 32])
@pytest.mark.parametrize("kind", ["discrete", "cpu"])
def test_small_shared_memory(kib: int, kind: str) -> None:
    """No tile is chosen that the device cannot hold, for any element size and problem."""
    from vkinductor.runtime import context

    info = context.get().info
    limits = dataclasses.replace(info.limits, max_shared_memory=kib << 10, max_workgroup_invocations=128)
    small = dataclasses.replace(info, limits=limits, kind=kind)
    for dtype in (torch.float16, torch.float32, torch.float64):
        for size in ((1, 1, 4096, 4096), (1, 4096, 4096, 4096), (64, 128, 128, 64), (1, 7, 9, 4096)):
            for b_contiguous in ("k", "n", ""):
                problem = Problem(*size, dtype, b_contiguous=b_contiguous)
                assert all(tile.fits(small, problem) for tile in candidates(small, problem))


def test_a_tile_too_large_does_not_fit() -> None:
    from vkinductor.runtime import context

    info = context.get().info
    limits = dataclasses.replace(info.limits, max_shared_memory=16 << 10)
    small = dataclasses.replace(info, limits=limits)
    big = TiledTile(tm=8, tn=8, bm=128, bn=128, bk=32)
    assert big.shared_bytes(4) > 16 << 10
    assert not big.holds(small, 4)


def test_backward() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w, b).tanh()

    args = [t.requires_grad_() for t in (torch.randn(2, 9, 20), torch.randn(11, 20), torch.randn(11))]
    moved = on_device(args)
    y = compiled(f)(*moved)
    expected = f(*args)
    same(torch.autograd.grad(y.sum(), moved), torch.autograd.grad(expected.sum(), args), rtol=1e-4, atol=1e-4)


def test_an_epilogue_that_could_overwrite_what_it_reads():
    """Two fused nodes read x, the last one could take its place; a third could take that of an operand."""

    def f(x, a, b):
        x = x * 2
        a = torch.sin(a)
        y = torch.tanh(a @ b)
        z = torch.where(y > x, y, -x)
        return z.softmax(-1) + x, a.relu() + torch.tanh(a @ b.t()) * a

    hold(f, torch.randn(16, 16), torch.randn(16, 16), torch.randn(16, 16))
