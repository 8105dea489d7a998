"""Products by one subgroup a tile, whose rows reach the lanes by broadcast: what CPU drivers take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cards import card
from compiled import check, compiled, dispatches, name_of, on_device, same

from vkinductor.codegen.gemm.broadcast import BroadcastTile
from vkinductor.codegen.gemm.choose import choose, forced
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.tiles import DirectTile
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import UNLIMITED, DeviceInfo

TOLERANCE = {
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-4},
}
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=name_of)


def tile(tm: int = 8, tn: int = 4) -> BroadcastTile:
    """One for the open device, whose subgroups have one size."""
    found = BroadcastTile(tm, tn, context.get().info.limits.subgroup_size)
    if not found.fits(context.get().info, Problem(1, 64, 64, 64, torch.float32)):
        pytest.skip("subgroups of several sizes, or without broadcast")
    return found


def hold(f: Callable[..., Any], *args: torch.Tensor, tile: BroadcastTile, **options: Any) -> None:
    """Compile ``f`` with ``tile`` and compare with float64."""
    dtype = args[0].dtype
    wide = f(*[a.double() for a in args])
    expected = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype), wide)
    with forced(tile):
        check(f, *args, expected=expected, tolerance=TOLERANCE[dtype], **options)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def layouts(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """a @ b of operands that lie along k, m and n, and along neither."""
    return a @ b, a @ b.t().contiguous().t(), a.t().contiguous().t() @ b, a.repeat_interleave(2, 1)[:, ::2] @ b


@dtypes
@pytest.mark.parametrize(
    "size", [(1, 2, 1), (3, 33, 7), (7, 31, 8), (8, 32, 16), (9, 34, 17), (17, 65, 33), (16, 64, 48), (5, 66, 130)]
)
def test_sizes_and_layouts(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Even sizes are loaded in pairs, along either dimension; what is left of a pass over k has a loop of its own."""
    m, n, k = size
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    hold(layouts, a, b, tile=tile())


@pytest.mark.parametrize(("tm", "tn"), [(1, 4), (3, 2), (5, 1)])
def test_other_tiles(tm: int, tn: int) -> None:
    hold(layouts, torch.randn(11, 50), torch.randn(50, 70), tile=tile(tm, tn))


def test_sizes_that_vary() -> None:
    g = torch.compile(product, backend="vulkan", fullgraph=True, dynamic=True)
    with forced(tile()):
        for m, n, k in ((9, 33, 17), (8, 32, 16), (2, 70, 3), (40, 66, 64)):
            a, b = torch.randn(m, k), torch.randn(k, n)
            same(g(*on_device([a, b])), (a.double() @ b.double()).float(), **TOLERANCE[torch.float32])


def test_operands_that_begin_anywhere() -> None:
    """A view that begins or steps at an odd element has no pairs."""

    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a[1:, 1:17] @ b[3:19, 1:], a[:, :18] @ b[:18, 2:40], torch.bmm(a[None, :, :19], b[None, :19])

    hold(f, torch.randn(12, 23), torch.randn(23, 41), tile=tile())


def test_infinities_stay_in_their_rows_and_columns() -> None:
    """Rows past the edge, columns past it and lanes beyond k are not multiplied with what lies there."""
    a, b = torch.randn(9, 19), torch.randn(19, 35)
    a[8, 18], b[18, 34] = torch.inf, -torch.inf
    hold(product, a, b, tile=tile())


def test_a_fused_epilogue() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, bias)) + rest

    args = torch.randn(2, 13, 24), torch.randn(46, 24), torch.randn(46), torch.randn(2, 13, 46)
    hold(f, *args, tile=tile())
    with forced(tile()):
        g = compiled(f)
        assert dispatches(lambda: g(*on_device(args))) == 1


def test_batches() -> None:
    hold(torch.bmm, torch.randn(5, 10, 12), torch.randn(5, 12, 36), tile=tile())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=name_of)
def test_integers(dtype: torch.dtype) -> None:
    a, b = (torch.randint(0, 9, shape).to(dtype) for shape in ((9, 21), (21, 40)))
    with forced(tile()):
        check(product, a, b)


def test_repeats_are_equal() -> None:
    a, b = on_device([torch.randn(65, 130), torch.randn(130, 66)])
    with forced(tile()):
        g = compiled(product)
        first = g(a, b).cpu()
        assert all(torch.equal(g(a, b).cpu(), first) for _ in range(100))


def processor(**limits: int) -> DeviceInfo:
    """A CPU driver with subgroups of 8."""
    info = card(kind="cpu", cooperative_shapes=())
    eight = dict.fromkeys(("subgroup_size", "subgroup_size_min", "subgroup_size_max"), 8)
    changed = dataclasses.replace(info.limits, **{"max_loop_iterations": UNLIMITED, **eight, **limits})
    features = dataclasses.replace(info.features, subgroup_ballot=True)
    return dataclasses.replace(info, limits=changed, features=features)


def test_what_cpu_drivers_choose() -> None:
    info, large = processor(), Problem(1, 512, 512, 512, torch.float32)
    assert choose(info, large) == BroadcastTile(8, 4, 8)
    assert choose(info, dataclasses.replace(large, m=3)) == BroadcastTile(3, 4, 8)
    assert choose(info, dataclasses.replace(large, n=16)) == BroadcastTile(8, 2, 8)
    # Small products are not worth the longer program, few columns leave lanes idle, registers have 4 bytes.
    for other in ({"m": 16, "n": 16, "k": 16}, {"n": 4}, {"dtype": torch.float64}, {"dtype": torch.int64}):
        assert isinstance(choose(info, dataclasses.replace(large, **other)), DirectTile)


def test_what_cpu_drivers_cannot_take() -> None:
    large = Problem(1, 512, 512, 1 << 20, torch.float32)
    assert isinstance(choose(processor(max_loop_iterations=65535), large), DirectTile)
    assert isinstance(choose(processor(subgroup_size_max=16), large), DirectTile)
    info = processor()
    info = dataclasses.replace(info, features=dataclasses.replace(info.features, subgroup_ballot=False))
    assert isinstance(choose(info, large), DirectTile)
