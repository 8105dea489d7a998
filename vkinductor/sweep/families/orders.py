"""Scans and sorts, in rows, in blocks and by templates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vkinductor.codegen import heuristics
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..errors import exactly, judged, of_sum
from ..layouts import LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import FLOATS, options

_SCANS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "cumsum": (torch.cumsum, lambda x, d, e: e * x.abs().cumsum(d)),
    "cumprod": (torch.cumprod, lambda x, d, e: 8 * e * x.abs().cumprod(d)),
    "logcumsumexp": (torch.logcumsumexp, lambda x, d, e: e * (1 + x.abs().cummax(d).values + x.logcumsumexp(d).abs())),
    "cummax": (torch.cummax, None),
    "cummin": (torch.cummin, None),
}
_SCAN_LAYOUTS = {
    "chosen": {},
    "lanes": {"lanes": 8, "rows": 2, "chunk": 4},
    "many lanes": {"lanes": 16, "rows": 1, "chunk": 1},
    "blocks": {"scan_limit": 16, "scan_block": 8, "lanes": 4, "chunk": 2},
}


def _scan(kind: str, layout: Mapping[str, Any], dtype: torch.dtype, dim: int, x: str, sizes: str) -> Program | None:
    scan, bound = _SCANS[kind]
    if layout.get("scan_block") and sizes == "vary":
        return None

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        values = torch.randn(sizes["rows"], sizes["columns"], generator=g)
        values = 1 + values / 64 if kind == "cumprod" else (values * 4).round() / 4  # with ties
        return [LAYOUTS[x](values.to(dtype))]

    def function(x: Any) -> Any:
        return scan(x, dim)

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        assert bound is not None
        return [bound(wide[0], dim, of_sum(wide[0].shape[dim], dtype))]

    spans = {"rows": Span(1, 40, edges=(8, 16)), "columns": Span(1, 130, edges=(8, 16, 32, 64, 128, 256))}
    judge = exactly(function) if bound is None else judged(function, allowed)
    return Program(
        function, operands, judge, spans, functools.partial(heuristics.override, **layout), dynamic=sizes == "vary"
    )


def _scan_axes(info: DeviceInfo) -> Axes:
    return {
        "kind": options(*_SCANS),
        "layout": _SCAN_LAYOUTS,
        "dtype": FLOATS,
        "dim": {"rows": -1, "columns": 0},
        "x": options(*LAYOUTS),
        "sizes": options("fixed", "vary"),
    }


_SORTS: dict[str, Callable[..., Any]] = {
    "up": lambda x, d: torch.sort(x, stable=True, dim=d),
    "down": lambda x, d: torch.sort(x, stable=True, dim=d, descending=True),
    "topk": lambda x, d: x.topk(1, d)[0],
    "median": lambda x, d: x.median(d)[0],
}
_SORT_LAYOUTS = {
    "chosen": {},
    "network": {"ranked_row": 0},
    "network of many lanes": {"ranked_row": 0, "lanes": 16, "rows": 2},
    "by counting": {"ranked_row": 512, "lanes": 64},
    "templates": {"row_sort": 0},
    "small blocks": {"row_sort": 0, "sort_block": 8},
}
_SORTED = {**FLOATS, **{str(t).removeprefix("torch."): t for t in (torch.int8, torch.uint8, torch.int32, torch.int64)}}


def _sort(kind: str, layout: Mapping[str, Any], dtype: torch.dtype, dim: int, x: str, sizes: str) -> Program | None:
    if sizes == "vary" and (layout.get("lanes") or "ranked_row" in layout):
        return None  # sorts inside row kernels are of known lengths

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        values = torch.randint(0, 99, (sizes["rows"], sizes["columns"]), generator=g).to(dtype)
        if dtype.is_floating_point:
            values[:, ::11], values[:, ::13], values[:, ::17] = -torch.inf, -0.0, torch.nan
        return [LAYOUTS[x](values)]

    def function(x: Any) -> Any:
        return _SORTS[kind](x, dim)

    spans = {"rows": Span(1, 20), "columns": Span(1, 130, edges=(8, 16, 32, 64, 128, 256))}
    return Program(
        function, operands, exactly(function), spans, functools.partial(heuristics.override, **layout),
        dynamic=sizes == "vary",
    )  # fmt: skip


def _sort_axes(info: DeviceInfo) -> Axes:
    return {
        "kind": options(*_SORTS),
        "layout": _SORT_LAYOUTS,
        "dtype": _SORTED,
        "dim": {"rows": -1, "columns": 0},
        "x": options(*LAYOUTS),
        "sizes": options("fixed", "vary"),
    }


FAMILIES = (Family("scans", _scan_axes, _scan), Family("sorts", _sort_axes, _sort))
