"""Products of integers, exact to the bit, and of floats with weights that are kept in 8 bits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from vkinductor.codegen.gemm import choose, integer
from vkinductor.codegen.gemm.broadcast import BroadcastTile
from vkinductor.codegen.gemm.cooperative import WorkgroupTile, shaped
from vkinductor.codegen.gemm.integer import PACKED, PackedSubgroupTile, PackedTile
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.skinny import GemvColumnsTile, GemvTile
from vkinductor.codegen.gemm.tiles import DirectTile, Tile, TiledTile
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..errors import exactly, judged, of_sum, rounding
from ..layouts import CONTIGUOUS, LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import SINGLES, _edges, label, labelled, on_gpu, options

INTEGERS = {str(t).removeprefix("torch."): t for t in (torch.int16, torch.int32, torch.int64, torch.uint8)}


def _exact(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The product modulo 2^64, wrapped to ``dtype``."""
    return (a.long() @ b.long()).to(dtype)


def _numbers(dtype: torch.dtype, shape: Sequence[int], g: Draw) -> torch.Tensor:
    info = torch.iinfo(dtype)
    low, high = (info.min, info.max + 1) if dtype.itemsize == 1 else (-(1 << 13), 1 << 13)
    return torch.randint(low, high, tuple(shape), generator=g, dtype=torch.int64).to(dtype)


EPILOGUES = ("none", "one more", "positive", "transposed", "requantized")


def _after(y: Any, epilogue: str) -> Any:
    if epilogue == "one more":
        return y + 1
    if epilogue == "positive":
        return y > 0
    if epilogue == "transposed":
        return y.t() * 2
    # A power of two: nothing is rounded, so that the CPU and the device agree to the bit.
    return (y * 2.0**-6).clamp(-128, 127).to(torch.int8) if epilogue == "requantized" else y


def _eights(tile: Any, a: str, b: str, form: str, epilogue: str, sizes: str) -> Program | None:
    """int8 by int8: exact in 32 bits, or wrapped to 8 as aten.mm has it."""
    contiguous = a in CONTIGUOUS and b in CONTIGUOUS
    problem = Problem(1, 64, 64, 64 * tile.splits, torch.int8, a_contiguous="k" if contiguous else "")
    if not tile.fits(context.get().info, problem) or (form == "mm" and epilogue == "requantized"):
        return None

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        left, right = (sizes["m"], sizes["k"]), (sizes["k"], sizes["n"])
        return [LAYOUTS[a](_numbers(torch.int8, left, g)), LAYOUTS[b](_numbers(torch.int8, right, g))]

    def function(a: Any, b: Any) -> Any:
        return _after(torch._int_mm(a, b) if form == "_int_mm" else a @ b, epilogue)

    def reference(a: Any, b: Any) -> Any:
        return _after(_exact(a, b, torch.int32 if form == "_int_mm" else torch.int8), epilogue)

    return Program(
        function, operands, exactly(reference), _edges(tile), functools.partial(choose.forced, tile),
        dynamic=sizes == "vary",
    )  # fmt: skip


def _eights_axes(info: DeviceInfo) -> Axes:
    tiles: list[Tile] = [
        PackedSubgroupTile(16, 32, 32, 16, 16, (8, 8, 16), emulated=8),
        WorkgroupTile(16, 32, 16, threads=64, emulated=1),
        PackedTile(16, 32, 32, 4, 4), PackedTile(16, 32, 16, 4, 4, dot=False), TiledTile(4, 2, 16, 32, 16),
        DirectTile(4, 4, 1, 8),
    ]  # fmt: skip
    shapes = integer.packed_shapes(info)
    if on_gpu(info):
        tiles += [*integer.WORKGROUP, *shaped(integer.SUBGROUP, shapes), *PACKED]
    elif (8, 8, 16) in shapes:
        tiles.append(PackedSubgroupTile(16, 32, 32, 16, 16, (8, 8, 16)))
    return {
        "tile": labelled([tile for tile in tiles if tile.fits(info, Problem(1, 64, 64, 64, torch.int8))]),
        "a": options(*LAYOUTS),
        "b": options(*LAYOUTS),
        "form": options("_int_mm", "mm"),
        "epilogue": options(*EPILOGUES),
        "sizes": options("fixed", "vary"),
    }


def _others(tile: Any, dtype: torch.dtype, a: str, b: str, form: str, sizes: str) -> Program | None:
    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        batch = [2] if form == "bmm" else []
        left, right = [*batch, sizes["m"], sizes["k"]], [*batch, sizes["k"], sizes["n"]]
        return [LAYOUTS[a](_numbers(dtype, left, g)), LAYOUTS[b](_numbers(dtype, right, g))]

    if not tile.fits(context.get().info, Problem(1, 64, 64, 64, dtype)):
        return None
    return Program(
        lambda a, b: a @ b, operands, exactly(lambda a, b: _exact(a, b, dtype)), _edges(tile),
        functools.partial(choose.forced, tile), dynamic=sizes == "vary",
    )  # fmt: skip


def _others_axes(info: DeviceInfo) -> Axes:
    tiles: list[Tile] = [DirectTile(4, 4, 1, 16), DirectTile(2, 2, 8, 4), TiledTile(4, 2, 32, 32, 16)]
    tiles.append(BroadcastTile(8, 4, info.limits.subgroup_size))
    return {
        "tile": {f"{type(tile).__name__}-{label(tile)}": tile for tile in tiles},
        "dtype": INTEGERS,
        "a": options(*LAYOUTS),
        "b": options(*LAYOUTS),
        "form": options("mm", "bmm"),
        "sizes": options("fixed", "vary"),
    }


def _kept(tile: Any, dtype: torch.dtype, form: str, layout: str, rows: Span) -> Program | None:
    """x @ w.to(x.dtype) * scales."""
    if isinstance(tile, GemvColumnsTile) != (form == "columns"):
        return None

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        w = _numbers(torch.int8, (n, k), g)
        scales = (torch.rand(n, generator=g) / 64).to(dtype)
        x = LAYOUTS[layout](torch.randn(m, k, generator=g).to(dtype))
        return [x, w.t().contiguous() if form == "columns" else w, scales]

    def function(x: Any, w: Any, s: Any) -> Any:
        if form == "columns":
            return torch.mm(x, w.to(x.dtype)) * s
        return torch.ops.aten._weight_int8pack_mm(x, w, s) if form == "packed" else F.linear(x, w.to(x.dtype)) * s

    def reference(x: Any, w: Any, s: Any) -> Any:
        return (x @ (w if form == "columns" else w.t()).double()) * s

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        x, w, s = wide
        terms = x.abs() @ (w if form == "columns" else w.t()).double().abs() * s
        return [rounding(dtype) * wants[0].abs() + of_sum(x.shape[1]) * terms]

    spans = {"m": rows, "n": Span(max(17, rows.high), 130), "k": Span(edges=(64, 128, 256))}
    forced = functools.partial(choose.forced, tile)
    return Program(function, operands, judged(reference, allowed), spans, forced)


def _kept_axes(info: DeviceInfo) -> Axes:
    tiles: list[Tile] = [GemvTile(32, 8, 2, 2), GemvTile(32, 32, 1, 4), GemvColumnsTile(32, 4, 1, 4)]
    if on_gpu(info):
        tiles += [GemvTile(128, 32, 4, 2), GemvColumnsTile(256, 8, 1, 8)]
    return {
        "tile": {f"{type(tile).__name__}-{label(tile)}": tile for tile in tiles},
        "dtype": SINGLES,
        "form": options("linear", "packed", "columns"),
        "layout": options("rows", "offset", "columns", "padded"),
        "rows": {"few": Span(1, 4), "many": Span(5, 8)},
    }


FAMILIES = (
    Family("products of 8-bit integers", _eights_axes, _eights),
    Family("products of integers", _others_axes, _others),
    Family("products, 8-bit weights", _kept_axes, _kept),
)
