"""Reductions over rows and columns, norms and softmax in every layout of a workgroup, and their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch._inductor import config

from vkinductor.codegen import heuristics
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..check import gradients, upstream
from ..errors import exactly, judged, of_sum, rounding
from ..layouts import LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..row_errors import EPS_LAYER, EPS_RMS, OF_GRADIENTS, units
from ..sizes import Sizes, Span
from .products import FLOATS, SINGLES, options


@dataclass(frozen=True)
class Operator:
    """``f`` of x [rows, columns], another like it, a gain and a shift [columns]; ``size``: of these, what an error of
    its sums is relative to; None: it is exact. ``saved``: how far the result goes with what is kept before there is a
    result, for gradients or because a row is so short that Inductor writes out its sum, relative to its rounding to the
    dtype, as in eager; None: nothing is."""

    f: Callable[..., Any]
    size: Callable[..., Any] | None
    saved: Callable[..., Any] | None = None


def _largest(x: Any) -> Any:
    """Of each row, kept as a column."""
    return x.abs().amax(-1, keepdim=True)


def _rms(x: Any, g: Any) -> Any:
    return F.rms_norm(x, x.shape[-1:], g, EPS_RMS)


def _layer_size(x: Any, y: Any, g: Any, b: Any) -> Any:
    """The mean is off by a sum of x, and by that every distance from it; the variance by a sum of their squares."""
    away = x - x.mean(-1, keepdim=True)
    r = (away.square().mean(-1, keepdim=True) + EPS_LAYER).rsqrt()
    h = (away * r).abs()
    d = r * (x.abs().mean(-1, keepdim=True) + x.abs()) + h
    return (d + h * (1 + 2 * (h * d).mean(-1, keepdim=True))) * g.abs() + b.abs()


def _extremes(x: Any, y: Any, g: Any, b: Any) -> Any:
    return x.amax(-1), x.amin(0), x.argmax(-1), x.argmin(0), (x > 2).any(-1), (y > 0).all(0)


def _log_size(x: Any) -> Any:
    return 1 + x.log_softmax(-1).abs() + _largest(x)


OPERATORS = {
    "softmax": Operator(
        lambda x, y, g, b: x.softmax(-1),
        lambda x, y, g, b: (1 + _largest(x)) * x.softmax(-1),
    ),
    "log softmax": Operator(lambda x, y, g, b: x.log_softmax(-1), lambda x, y, g, b: _log_size(x)),
    "logsumexp": Operator(lambda x, y, g, b: x.logsumexp(-1), lambda x, y, g, b: 1 + x.abs().amax(-1)),
    "layer norm": Operator(lambda x, y, g, b: F.layer_norm(x, x.shape[-1:], g, b), _layer_size),
    "rms norm": Operator(lambda x, y, g, b: _rms(x, g), lambda x, y, g, b: 1 + _rms(x, g).abs()),
    "residual and rms norm": Operator(
        lambda x, y, g, b: _rms(x + y, g),
        lambda x, y, g, b: 1 + (x.abs() + y.abs()) * 8 * g.abs(),
        # x + y: its rounding moves the root mean square as well.
        lambda x, y, g, b: 2 * _rms(x + y, g).abs(),
    ),
    "sum": Operator(lambda x, y, g, b: (x * y).sum(-1), lambda x, y, g, b: (x * y).abs().sum(-1)),
    "mean of columns": Operator(
        lambda x, y, g, b: (x * 2 + y).mean(0),
        lambda x, y, g, b: (x.abs() * 2 + y.abs()).mean(0),
    ),
    "mean of all": Operator(lambda x, y, g, b: x.mean(), lambda x, y, g, b: x.abs().mean()),
    "variance": Operator(
        lambda x, y, g, b: x.var(-1, unbiased=False),
        lambda x, y, g, b: x.square().mean(-1) + x.var(-1, unbiased=False),
    ),
    "norm": Operator(lambda x, y, g, b: x.norm(dim=-1), lambda x, y, g, b: x.norm(dim=-1)),
    "product": Operator(
        lambda x, y, g, b: (1 + x / 64).prod(-1),
        lambda x, y, g, b: 16 * (1 + x.abs() / 64).prod(-1),
    ),
    "nll": Operator(
        lambda x, y, g, b: -x.log_softmax(-1).mul(y).sum(-1),
        lambda x, y, g, b: (_log_size(x) * y.abs()).sum(-1),
        lambda x, y, g, b: (x.log_softmax(-1) * y).abs().sum(-1),
    ),
    "largest": Operator(_extremes, None),
}

_LAYOUTS: dict[str, dict[str, Any]] = {
    "chosen": {},
    "one lane": {"lanes": 1, "rows": 8, "elements": 0},
    "looped": {"lanes": 8, "rows": 4, "elements": 0, "reads_dominate": True},
    "looped in batches": {"lanes": 8, "rows": 2, "elements": 0, "batch": 4, "width": 1},
    "in registers": {"lanes": 32, "rows": 1, "elements": 8, "reads_dominate": True, "_registers": 256},
    "subgroups": {"lanes": 8, "rows": 8, "elements": 32, "subgroups": 1, "reads_dominate": True, "_registers": 256},
    "columns": {"columns": 1, "lanes": 4, "rows": 16, "elements": 0},
}


def _program(
    operator: str, layout: Mapping[str, Any], dtype: torch.dtype, x: str, offset: float, sizes: str,
    gradient: bool = False,
) -> Program | None:  # fmt: skip
    own = OPERATORS[operator]
    known = {name: value for name, value in layout.items() if not name.startswith("_")}
    # Rows in registers have a length that is known.
    if "_registers" in layout and sizes == "vary":
        return None
    longest = layout.get("_registers", 260)

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        m, n = sizes["rows"], sizes["columns"]
        values, other = (torch.randn(m, n, generator=g) + offset).to(dtype), torch.randn(m, n, generator=g).to(dtype)
        if operator == "largest":
            values = (values * 4).round() / 4  # with ties
        rest = [torch.randn(n, generator=g).to(dtype) for _ in range(2)]
        return [LAYOUTS[x](values), other, *rest]

    def function(x: Any, y: Any, g: Any, b: Any) -> Any:
        return own.f(x, y, g, b)

    def precision(x: torch.Tensor) -> float:
        return of_sum(x.shape[-1] + x.shape[0], dtype)

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        assert own.size is not None
        detached = [t.detach() for t in wide]
        limit = precision(detached[0]) * own.size(*detached)
        keeps = gradient or detached[0].shape[-1] < config.unroll_reductions_threshold
        if keeps and own.saved is not None and dtype in (torch.float16, torch.bfloat16):
            limit = limit + rounding(dtype) * own.saved(*detached)
        if not gradient:
            return [limit]
        up = upstream(wants[0], dtype).double()
        of_x = OF_GRADIENTS[operator](*detached, up, units(detached[0].shape[-1], dtype))
        return [limit, of_x]

    def reference(*wide: Any) -> Any:
        return gradients(1, own.f, wide, dtype) if gradient else own.f(*wide)

    spans = {
        "rows": Span(1, 70, edges=(4, 8, 16, 64)),
        "columns": Span(2, 130, edges=tuple(e for e in (8, 16, 32, 64, 128, 256) if e < longest)),
    }
    judge = exactly(own.f) if own.size is None else judged(reference, allowed)
    return Program(
        function, operands, judge, spans, functools.partial(heuristics.override, **known), dynamic=sizes == "vary",
        gradients=int(gradient),
    )  # fmt: skip


def _axes(info: DeviceInfo) -> Axes:
    return {
        "operator": options(*OPERATORS),
        "layout": _LAYOUTS,
        "dtype": FLOATS,
        "x": options(*LAYOUTS),
        "offset": {"0": 0.0, "5": 5.0},
        "sizes": options("fixed", "vary"),
    }


def _gradients(**more: Any) -> Program | None:
    return _program(**more, gradient=True)


def _gradient_axes(info: DeviceInfo) -> Axes:
    sums = {"fewest_with_sums": 1, "lanes": 8, "rows": 2, "sums_of_parts": 160, "reads_dominate": True}
    layouts = {"chosen": {}, "looped": _LAYOUTS["looped"], "rows and columns in one": sums}
    x = options(*(name for name in LAYOUTS if name != "expanded"))
    return {**_axes(info), "operator": options(*OF_GRADIENTS), "dtype": SINGLES, "layout": layouts, "x": x}


def _long(operator: str, dtype: torch.dtype, x: str) -> Program | None:
    made = _program(operator, {}, dtype, x, 0.0, "fixed")
    if made is None:
        return None
    spans = {"rows": Span(1, 3), "columns": Span(900, 5000, edges=(1024, 2048, 4096))}
    return Program(made.function, made.operands, made.judge, spans, made.context, together=2)


def _long_axes(info: DeviceInfo) -> Axes:
    return {"operator": options(*OPERATORS), "dtype": SINGLES, "x": options("rows", "offset", "columns", "padded")}


FAMILIES = (
    Family("reductions, norms and softmax", _axes, _program),
    Family("reductions of long rows", _long_axes, _long),
    Family("gradients of norms and softmax", _gradient_axes, _gradients),
)
