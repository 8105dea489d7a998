"""Elementwise kernels: wide loads and their tails, operands in any layout, transposes through tiles, conversions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.codegen import heuristics
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..errors import SINGLE, exactly, judged, rounding
from ..layouts import LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import FLOATS, options


@dataclass(frozen=True)
class Chain:
    """``f`` of two tensors [3, rows, columns] and a row; ``size``: of what is rounded on the way; None: it is exact."""

    f: Callable[[Any, Any, Any], Any]
    size: Callable[[Any, Any, Any], Any] | None = None


CHAINS = {
    "multiply and add": Chain(lambda x, y, r: x * y + r, lambda x, y, r: (x * y).abs() + r.abs()),
    "where": Chain(lambda x, y, r: torch.where(x > y, x, r)),
    "transposed sum": Chain(lambda x, y, r: (x.mT + y.mT).contiguous(), lambda x, y, r: (x.abs() + y.abs()).mT),
    "copy": Chain(lambda x, y, r: (x.clone(), x.mT.contiguous(), x.permute(1, 2, 0).contiguous())),
    "flip and concatenate": Chain(lambda x, y, r: (torch.cat([x, y.flip(-1)], -1), torch.cat([x, y], 1))),
    "sigmoid": Chain(lambda x, y, r: x.sigmoid() * y, lambda x, y, r: 4 * y.abs()),
    "exp and log": Chain(
        lambda x, y, r: (x.exp() + y.abs()).log(),
        lambda x, y, r: 4 + 4 * x.abs() + 4 * (x.exp() + y.abs()).log().abs(),
    ),
    "rows of a row": Chain(lambda x, y, r: (x + r, r.expand(x.shape).contiguous()), None),
    "to others": Chain(
        lambda x, y, r: (
            x.half().double(), y.bfloat16().float(), (x * 8).to(torch.int32), y > 0, (r * 8).to(torch.int8),
        )
    ),
}  # fmt: skip
_LAYOUTS: dict[str, dict[str, Any]] = {
    "chosen": {},
    "width 1": {"width": 1},
    "width 4": {"width": 4, "tails": 1},
    "width 8": {"width": 8, "workgroup": 64},
    "tile 16": {"tile": (16, 16), "reads_dominate": True},
    "tile 64 by 32": {"tile": (64, 32), "tails": 1},
}


def _program(chain: str, layout: Mapping[str, Any], dtype: torch.dtype, x: str, y: str, sizes: str) -> Program | None:
    own = CHAINS[chain]
    if chain == "to others" and dtype == torch.float64:
        return None  # halves of doubles may be rounded twice

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        m, n = sizes["rows"], sizes["columns"]
        # Multiples of 1/8: sums of two are exact in every dtype.
        x_, y_ = ((torch.randn(3, m, n, generator=g) * 8).round().clamp(-40, 40).div(8).to(dtype) for _ in range(2))
        row = (torch.randn(n, generator=g) * 8).round().div(8).to(dtype)
        return [LAYOUTS[x](x_), LAYOUTS[y](y_), row]

    def function(x: Any, y: Any, r: Any) -> Any:
        return own.f(x, y, r)

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        assert own.size is not None
        return [4 * (rounding(dtype) if dtype == torch.float64 else SINGLE) * own.size(*wide)]

    spans = {"rows": Span(edges=(16, 32, 64)), "columns": Span(edges=(16, 32, 64, 256))}
    judge = exactly(own.f) if own.size is None else judged(own.f, allowed)
    return Program(
        function, operands, judge, spans, functools.partial(heuristics.override, **layout), dynamic=sizes == "vary"
    )


def _axes(info: DeviceInfo) -> Axes:
    return {
        "chain": options(*CHAINS),
        "layout": _LAYOUTS,
        "dtype": FLOATS,
        "x": options(*LAYOUTS),
        "y": options(*LAYOUTS),
        "sizes": options("fixed", "vary"),
    }


FAMILIES = (Family("pointwise and transposes", _axes, _program),)
