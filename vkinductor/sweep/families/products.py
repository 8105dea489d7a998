"""Matrix products of floats on every kind of tile, emulated and of the device's own matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from vkinductor.codegen.gemm import choose
from vkinductor.codegen.gemm.broadcast import BroadcastTile
from vkinductor.codegen.gemm.cooperative import WORKGROUP, SubgroupTile, WorkgroupTile, subgroup_tiles
from vkinductor.codegen.gemm.problem import Problem
from vkinductor.codegen.gemm.skinny import GemvColumnsTile, GemvTile
from vkinductor.codegen.gemm.tiles import REGISTER, TILED, BlockTile, DirectTile, RegisterTile, Tile, TiledTile
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..errors import judged, of_sum, rounding
from ..layouts import CONTIGUOUS, LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SINGLES = {**HALVES, "float32": torch.float32}
FLOATS = {**SINGLES, "float64": torch.float64}


@dataclass(frozen=True)
class Epilogue:
    """``apply`` to the product, a residual of its shape and a bias; ``spread``: how far the result may be off where the
    product may be off by ``d``."""

    apply: Callable[[Any, Any, Any], Any]
    spread: Callable[[Any, Any], Any] = lambda d, r: d


EPILOGUES = {
    "none": Epilogue(lambda y, r, b: y),
    "bias": Epilogue(lambda y, r, b: y + b),
    "gelu and residual": Epilogue(
        lambda y, r, b: F.gelu(y + b, approximate="tanh") + r, lambda d, r: 1.13 * d + 2e-6
    ),
    "erf gelu": Epilogue(lambda y, r, b: F.gelu(y + b), lambda d, r: 1.13 * d + 2e-6),
    "silu and gate": Epilogue(lambda y, r, b: F.silu(y) * r, lambda d, r: (1.1 * d + 2e-6) * r.abs()),
    "to float32": Epilogue(lambda y, r, b: (y * 0.5).to(torch.promote_types(y.dtype, torch.float32))),
    "mask": Epilogue(lambda y, r, b: torch.where(r > 0, y, -1.0)),
    "transposed": Epilogue(lambda y, r, b: y.mT * 2, lambda d, r: 2 * d.mT),
    "place": Epilogue(lambda y, r, b: y + torch.arange(y.shape[-1], device=y.device)),
}  # fmt: skip

FORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mm": lambda a, b, c: a @ b,
    "bmm": lambda a, b, c: torch.bmm(a, b),
    "linear": lambda a, b, c: F.linear(a, b.mT),
    "addmm": lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
    "relu first": lambda a, b, c: F.relu(a) @ b,
    "scaled weights": lambda a, b, c: a @ (b * 0.5),
}


def _values(kind: str, m: int, n: int, k: int, batch: tuple[int, ...], g: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal ones, or sums that go far beyond float16 and come back to zero: the second half of their terms cancels the
    first."""
    a, b = torch.randn(*batch, m, k, generator=g), torch.randn(*batch, k, n, generator=g)
    if kind == "cancelling":
        half = k // 2
        a, b = a.abs() * 60 + 60, b.abs() * 60 + 60
        a[..., 2 * half :] = 0
        a[..., half : 2 * half], b[..., half : 2 * half, :] = a[..., :half], -b[..., :half, :]
    return a, b


def _edges(tile: Tile | None) -> Mapping[str, Span]:
    known = {name: getattr(tile, name, 0) for name in ("bm", "bn", "bk", "tm", "tn")}
    known["lanes"] = tile.lanes if isinstance(tile, (DirectTile, BroadcastTile)) else 0
    m = {known["bm"] or known["tm"] or 8}
    n = {known["bn"] or known["tn"] * max(1, known["lanes"]) or 32}
    k = {known["bk"] or max(8, known["lanes"]), 16, 32}
    m, n, k = m | {2 * max(m)}, n | {2 * max(n)}, k | {2 * max(k), 256}
    return {"m": Span(edges=tuple(m)), "n": Span(edges=tuple(n)), "k": Span(edges=tuple(k))}


def product(
    tile: Tile | None, dtype: torch.dtype, a: str, b: str, form: str, epilogue: Epilogue, values: str, sizes: str,
    spans: Mapping[str, Span] | None = None,
) -> Program | None:  # fmt: skip
    """The program of one choice; None where these do not go together."""
    if (form == "linear" and b == "expanded") or (form == "addmm" and epilogue is EPILOGUES["to float32"]):
        return None
    if values == "cancelling" and "expanded" in (a, b):
        return None  # one row for all: nothing cancels
    if values == "cancelling" and form in ("relu first", "scaled weights"):
        return None  # rounding an operand that is computed is not what is looked for

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        batch = (3,) if form == "bmm" else ()
        x, y = _values(values, m, n, k, batch, g)
        large = 1.0 if values == "normal" else 1000.0
        residual = torch.randn(*batch, m, n, generator=g) * large
        bias = torch.randn(n, generator=g) * large
        return [LAYOUTS[a](x.to(dtype)), LAYOUTS[b](y.to(dtype)), residual.to(dtype), bias.to(dtype)]

    def function(a: Any, b: Any, r: Any, c: Any) -> Any:
        return epilogue.apply(FORMS[form](a, b, r if form == "addmm" else c), r, c)

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        left, right, r, c = wide
        y = FORMS[form](left, right, r if form == "addmm" else c)
        scale = 2.0 if form == "addmm" else 1.0
        terms = left.abs() @ right.abs() * scale
        # What is computed before may be rounded where it gets a kernel of its own: exactly here.
        d = rounding(dtype) * y.abs() + of_sum(left.shape[-1], dtype) * (terms + c.abs() + r.abs())
        return [epilogue.spread(d, r)]

    return Program(
        function, operands, judged(function, allowed), spans or _edges(tile), functools.partial(_forced, tile),
        dynamic=sizes == "vary",
    )  # fmt: skip


def _forced(tile: Tile | None) -> AbstractContextManager[None]:
    return nullcontext() if tile is None else choose.forced(tile)


def options(*names: str) -> dict[str, Any]:
    """Options that are their own names."""
    return {name: name for name in names}


def _axes(tiles: Mapping[str, Any], dtypes: Mapping[str, Any], layouts: Sequence[str]) -> Axes:
    return {
        "tile": tiles,
        "dtype": dtypes,
        "a": options(*layouts),
        "b": options(*layouts),
        "form": options(*FORMS),
        "epilogue": EPILOGUES,
        "values": options("normal", "cancelling"),
        "sizes": options("fixed", "vary"),
    }


def label(tile: Tile) -> str:
    """A tile's numbers."""
    parts = [getattr(tile, name, None) for name in ("bm", "bn", "bk", "sm", "sn", "tm", "tn", "threads", "lanes")]
    text = "x".join(str(p) for p in parts if isinstance(p, int))
    shape = "-" + "x".join(map(str, tile.shape)) if isinstance(tile, SubgroupTile) else ""
    rest = "".join(f"-{name}{getattr(tile, name)}" for name in ("rows", "loads", "blocks") if hasattr(tile, name))
    emulated = "-emulated" if getattr(tile, "emulated", 0) else ""
    dot = "-dot" if getattr(tile, "dot", False) else ""
    return f"{text}{shape}{rest}{dot}{emulated}" + (f"-splits{tile.splits}" if tile.splits > 1 else "")


def labelled(tiles: Sequence[Tile]) -> dict[str, Tile]:
    """By their labels; blocks also with the sum in parts."""
    parts = [replace(tile, splits=3) for tile in tiles if isinstance(tile, BlockTile)]
    return {label(tile): tile for tile in (*tiles, *parts)}


def on_gpu(info: DeviceInfo) -> bool:
    """Whether large tiles are worth compiling: on a CPU driver one takes many seconds."""
    return info.kind != "cpu"


def _direct(info: DeviceInfo) -> Axes:
    tiles = (
        DirectTile(1, 1, 1, 64), DirectTile(4, 4, 1, 16), DirectTile(2, 1, 1, 128), DirectTile(1, 2, 64, 2),
        DirectTile(8, 2, 16, 8), DirectTile(4, 4, 4, 1),
    )  # fmt: skip
    return _axes(labelled(tiles), FLOATS, tuple(LAYOUTS))


def _tiled(info: DeviceInfo) -> Axes:
    tiles = [TILED[-1], TiledTile(1, 1, 8, 8, 4), TiledTile(4, 4, 16, 32, 8), *(TILED[:2] if on_gpu(info) else ())]
    return _axes(labelled(tiles), FLOATS, tuple(LAYOUTS))


def _register(info: DeviceInfo) -> Axes:
    tiles = [RegisterTile(16, 32, 8, 4, 4), REGISTER[-1], *(REGISTER[:-1] if on_gpu(info) else ())]
    return _axes(labelled([t for t in tiles if t.holds(info, 4)]), SINGLES, tuple(LAYOUTS))


def _broadcast(info: DeviceInfo) -> Axes:
    lanes = info.limits.subgroup_size
    tiles = [BroadcastTile(tm, tn, lanes) for tm, tn in ((8, 4), (3, 2), (5, 1), (1, 4))]
    fitting = [t for t in tiles if t.fits(info, Problem(1, 64, 64, 64, torch.float32))]
    return _axes(labelled(fitting), SINGLES, tuple(LAYOUTS))


def _subgroup(info: DeviceInfo) -> Axes:
    tiles: list[Tile] = [
        SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8),
        SubgroupTile(32, 32, 32, 16, 32, (16, 16, 16), emulated=8),
    ]
    own = [tile for dtype in HALVES.values() for tile in subgroup_tiles(info, dtype)]
    tiles += dict.fromkeys(own) if on_gpu(info) else ()
    if SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8)).fits(info, Problem(1, 16, 32, 16, torch.float16)):
        tiles.append(SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8)))
    return _axes(labelled(tiles), HALVES, tuple(LAYOUTS))


def _workgroup(info: DeviceInfo) -> Axes:
    problem = Problem(1, 64, 64, 64, torch.float16)
    own = [tile for tile in WORKGROUP if tile.fits(info, problem)]
    tiles = [WorkgroupTile(16, 32, 16, threads=64, emulated=1), WorkgroupTile(32, 16, 8, threads=32, emulated=1), *own]
    return _axes(labelled(tiles), HALVES, tuple(LAYOUTS))


def _matrices(tile: Any, dtype: torch.dtype, a: str, b: str, **more: Any) -> Program | None:
    """Those of the device want one contiguous dimension, and bfloat16 where it has that."""
    contiguous = a in CONTIGUOUS and b in CONTIGUOUS
    problem = Problem(1, 64, 64, 64, dtype, a_contiguous="k" if contiguous else "", b_contiguous="n")
    if not tile.fits(context.get().info, replace(problem, k=64 * tile.splits)):
        return None
    return product(tile, dtype, a, b, **more)


def _chosen(info: DeviceInfo) -> Axes:
    return _axes({"chosen": None}, FLOATS, tuple(LAYOUTS))


def _gemv_axes(info: DeviceInfo) -> Axes:
    tiles = [
        GemvTile(32, 4, 2, 2), GemvTile(16, 8, 4, 1), GemvTile(32, 32, 2, 4), GemvTile(32, 1, 1, 2),
        GemvColumnsTile(32, 4, 1, 4), GemvColumnsTile(16, 16, 1, 2), GemvColumnsTile(64, 2, 3, 8),
    ]  # fmt: skip
    if on_gpu(info):
        tiles += [
            GemvTile(128, 32, 4, 4), GemvTile(256, 256, 2, 8), GemvTile(128, 8, 8, 2), GemvColumnsTile(256, 8, 1, 8),
            GemvColumnsTile(512, 8, 1, 4), GemvColumnsTile(256, 32, 1, 4),
        ]  # fmt: skip
    found = _axes(labelled(tiles), FLOATS, tuple(LAYOUTS))
    own = {"x": options("first", "second"), "rows": options("one", "few", "many"), "form": options("mm", "bmm")}
    return {**found, **own}


def _gemv(tile: Any, dtype: torch.dtype, a: str, b: str, x: str, rows: str, **more: Any) -> Program | None:
    """Few rows of either operand; weights contiguous along k or n, as the tile takes them."""
    along_rows = {"rows": "n", "columns": "k", "offset": "n", "offset columns": "k", "padded": "n", "expanded": "n"}
    few = {"one": Span(1, 1), "few": Span(2, 4), "many": Span(5, 9 if more["sizes"] == "fixed" else 8)}[rows]
    if more["sizes"] == "vary" and rows == "one":
        return None
    weights = a if x == "second" else b
    along = along_rows.get(weights, "")
    if x == "second":
        along = {"n": "k", "k": "m"}.get(along, "")
    problem = Problem(1, few.high, 64, 64, dtype, b_contiguous=along or "", b_width=16 // dtype.itemsize)
    if x == "second":
        problem = Problem(1, 64, few.high, 64, dtype, a_contiguous=along, a_width=16 // dtype.itemsize)
    if isinstance(tile, GemvColumnsTile) != (along in ("n", "m")) or not tile.fits(context.get().info, problem):
        return None
    round_, outputs = tile.lanes * 4, 4 * tile.lanes
    wide = Span(10, 200, edges=(outputs, 2 * outputs, 8))
    k = Span(edges=(round_, round_ * tile.loads, 2 * round_ * tile.loads))
    spans = {"m": few, "n": wide, "k": k} if x == "first" else {"m": wide, "n": few, "k": k}
    return product(tile, dtype, a, b, spans=spans, **more)


FAMILIES = (
    Family("products, chosen", _chosen, product),
    Family("products, direct", _direct, product),
    Family("products, tiled", _tiled, product),
    Family("products, register", _register, product),
    Family("products, broadcast", _broadcast, product),
    Family("products, subgroup matrices", _subgroup, _matrices),
    Family("products, workgroup matrices", _workgroup, _matrices),
    Family("products, few rows", _gemv_axes, _gemv),
)
