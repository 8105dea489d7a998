"""Convolutions as matrix products: the paths that only a GPU takes, forced, with cooperative matrices emulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, dispatches, name_of, on_device, same

from vkinductor.codegen import heuristics
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.cooperative import SubgroupTile
from vkinductor.codegen.gemm.tiles import RegisterTile, Tile
from vkinductor.runtime.errors import UnsupportedError

SUBGROUP = SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8)
REGISTER = RegisterTile(16, 32, 8, 4, 4)
TOLERANCE: dict[torch.dtype, dict[str, float]] = {
    torch.float16: {"rtol": 3e-3, "atol": 3e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-4},
}
LAST = {1: None, 2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def products() -> Iterator[None]:
    with heuristics.override(convolution_products=1):
        yield


def image(dtype: torch.dtype, *shape: int, last: bool = True) -> torch.Tensor:
    made = (torch.randn(shape) / 2).to(dtype)
    if not last:
        return made
    dims = len(shape) - 2
    return made.to(memory_format=LAST[dims]) if dims > 1 else made.mT.contiguous().mT


def hold(tile: Tile, f: Any, *args: torch.Tensor, dynamic: bool = False) -> Any:
    """Compile ``f`` with ``tile`` and compare with float64; returns what was compiled."""
    g = compiled(f, dynamic=dynamic)
    with forced(tile):
        result = g(*on_device(args))
    dtype = args[0].dtype
    same(result, f(*[a.double() for a in args]).to(dtype), **TOLERANCE[dtype])
    return g


def count(g: Any, *args: torch.Tensor) -> int:
    return dispatches(g, *on_device(args))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=name_of)
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_one_element_is_a_product_without_copies(last: bool, dtype: torch.dtype) -> None:
    x, w, b = image(dtype, 2, 24, 5, 7, last=last), image(dtype, 40, 24, 1, 1), torch.randn(40).to(dtype)
    r = image(dtype, 2, 40, 5, 7, last=last)
    g = hold(REGISTER, lambda x, w, b, r: F.relu(F.conv2d(x, w, b)) + r, x, w, b, r)
    assert count(g, x, w, b, r) == 1


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 16, 6, 7), (40, 16, 3, 3), {"padding": 1}),
    ((2, 8, 9, 8), (24, 8, 3, 2), {"padding": (2, 1), "stride": (2, 1), "dilation": (1, 2)}),
    ((3, 24, 7, 7), (32, 24, 1, 1), {"stride": 2}),
    ((1, 3, 11, 12), (17, 3, 5, 5), {"stride": 2, "padding": 2}),
    ((2, 16, 19), (24, 16, 3), {"padding": 1}),
    ((2, 8, 4, 5, 4), (16, 8, 2, 3, 2), {"padding": (1, 0, 1)}),
]


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: "x".join(map(str, c[1])))
def test_windows(case: tuple[Any, Any, dict[str, Any]], last: bool) -> None:
    x, w = image(torch.float16, *case[0], last=last), image(torch.float16, *case[1], last=last)
    layer = getattr(F, f"conv{len(case[0]) - 2}d")
    hold(SUBGROUP, lambda x, w, b: layer(x, w, b, **case[2]), x, w, torch.randn(case[1][0]).half())


def test_what_follows_is_stored_with_it() -> None:
    x, w, b = image(torch.bfloat16, 2, 16, 6, 7), image(torch.bfloat16, 40, 16, 3, 3), torch.randn(40).bfloat16()
    r = image(torch.bfloat16, 2, 40, 6, 7)
    g = hold(SUBGROUP, lambda x, w, b, r: F.relu(F.conv2d(x, w, b, padding=1)) + r, x, w, b, r)
    assert count(g, x, w, b, r) == 1


def test_a_network_stays_channels_last() -> None:
    """The second layer finds the first one's result as it needs it: a kernel each, and the mean's."""
    x, w, v = (image(torch.float16, *s) for s in ((2, 16, 6, 7), (24, 16, 3, 3), (16, 24, 3, 3)))
    w, v = w / 8, v / 8  # the first result is rounded, which the reference is not
    g = hold(SUBGROUP, lambda x, w, v: F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v).mean((2, 3)), x, w, v)
    assert count(g, x, w, v) == 3


@pytest.mark.parametrize("how", [{"splits": 3}, {"streams": 4}], ids=str)
def test_parts_of_the_sum(how: dict[str, int]) -> None:
    x, w = image(torch.float16, 1, 64, 5, 5), image(torch.float16, 24, 64, 3, 3)
    tile = SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8, **how)
    hold(tile, lambda x, w: F.conv2d(x, w, padding=1), x, w)


def test_sizes_that_vary() -> None:
    g = torch.compile(lambda x, w: F.conv2d(x, w, padding=1, stride=2), backend="vulkan", fullgraph=True, dynamic=True)
    w = image(torch.float16, 24, 16, 3, 3)
    for shape in ((2, 16, 6, 7), (3, 16, 9, 5)):
        x = image(torch.float16, *shape)
        with forced(SUBGROUP):
            same(
                g(*on_device([x, w])),
                F.conv2d(x.double(), w.double(), padding=1, stride=2).half(),
                rtol=3e-3,
                atol=3e-3,
            )


def test_nan_stays_where_it_belongs() -> None:
    x, w = image(torch.float16, 1, 8, 9, 9), image(torch.float16, 24, 8, 3, 3)
    x[0, 1, 2, 3] = torch.nan
    hold(SUBGROUP, lambda x, w: F.conv2d(x, w, padding=1), x, w)


DEPTHWISE: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 16, 6, 19), (3, 3), {"padding": 1}),
    ((2, 5, 9, 11), (5, 3), {"padding": (2, 0), "stride": (1, 2), "dilation": (1, 2)}),
    ((2, 8, 21), (4,), {"padding": 2, "stride": 3}),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=name_of)
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_depthwise(last: bool, dtype: torch.dtype) -> None:
    for shape, taps, options in DEPTHWISE:
        channels = shape[1]
        x, w, b = image(dtype, *shape, last=last), image(dtype, channels, 1, *taps, last=False), torch.randn(channels)
        layer = getattr(F, f"conv{len(taps)}d")
        tile = SUBGROUP if dtype != torch.float32 else REGISTER
        hold(tile, lambda x, w, b, f=layer, o=options, c=channels: F.relu(f(x, w, b, groups=c, **o)), x, w, b.to(dtype))


def test_depthwise_is_one_kernel() -> None:
    x, w, b = image(torch.float16, 2, 16, 6, 7), image(torch.float16, 16, 1, 3, 3, last=False), torch.randn(16).half()
    r = image(torch.float16, 2, 16, 6, 7)
    g = hold(SUBGROUP, lambda x, w, b, r: F.relu(F.conv2d(x, w, b, padding=1, groups=16)) + r, x, w, b, r)
    assert count(g, x, w, b, r) == 1


@pytest.mark.parametrize("taps", [1, 3])
def test_a_forced_tile_refuses_operands_that_it_cannot_multiply(taps: int) -> None:
    x, w = image(torch.float32, 1, 16, 4, 4), image(torch.float32, 16, 16, taps, taps)
    with pytest.raises(UnsupportedError, match=r"SubgroupTile.*float32.*bfloat16, float16"):
        hold(SUBGROUP, F.conv2d, x, w)
