"""Convolutions: the general kernels, those that are matrix products, depthwise ones, transposed, their gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from vkinductor.codegen import convolution, heuristics, implicit_gemm
from vkinductor.codegen.gemm.choose import forced
from vkinductor.codegen.gemm.cooperative import SubgroupTile
from vkinductor.codegen.gemm.tiles import TILED, DirectTile, RegisterTile, Tile
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..check import gradients, upstream
from ..errors import judged, of_sum, rounding
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import FLOATS, SINGLES, on_gpu, options

# name -> (dimensions, taps, options)
_WINDOWS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "1d 3": (1, 3, {"padding": 1}),
    "1d 4 by 3": (1, 4, {"stride": 3, "padding": 2}),
    "2d 1": (2, 1, {}),
    "2d 1 by 2": (2, 1, {"stride": 2}),
    "2d 3": (2, 3, {"padding": 1}),
    "2d 3 by 2": (2, 3, {"stride": 2, "padding": 1}),
    "2d 3 wide": (2, 3, {"padding": (2, 0), "dilation": (2, 1)}),
    "2d 5": (2, 5, {"stride": 2, "padding": 2}),
    "3d 2": (3, 2, {"padding": (1, 0, 1)}),
}
_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def _image(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "last":
        return x.to(memory_format=_LAST[x.dim() - 2]) if x.dim() > 3 else x.mT.contiguous().mT
    if layout == "view":  # every other row of a larger image that is NaN elsewhere
        base = torch.full((*x.shape[:-1], x.shape[-1] * 2 + 1), torch.nan, dtype=x.dtype)
        return base[..., 1::2].copy_(x)
    return x.contiguous()


@contextlib.contextmanager
def _context(tile: Tile | None, products: bool, parts: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(heuristics.override(convolution_products=products))
        if tile is not None and products:
            stack.enter_context(forced(tile))
        elif tile is not None:
            stack.enter_context(mock.patch.object(implicit_gemm, "choose", return_value=tile))
        if parts:
            stack.enter_context(mock.patch.object(convolution, "parts", return_value=parts))
        yield


def _convolution(
    kernel: Mapping[str, Any], dtype: torch.dtype, window: str, groups: str, x: str, w: str, after: str, way: str,
    sizes: str,
) -> Program | None:  # fmt: skip
    dims, taps, named = _WINDOWS[window]
    transposed, gradient = way == "transposed", way == "gradients"
    if isinstance(kernel["tile"], SubgroupTile) and dtype not in (torch.float16, torch.bfloat16):
        return None
    if isinstance(kernel["tile"], RegisterTile) and dtype == torch.float64:
        return None
    if gradient and after == "relu and residual":
        return None
    layer = getattr(F, f"conv{'_transpose' if transposed else ''}{dims}d")
    depthwise = groups == "depthwise"

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        count = sizes["c"] if depthwise else {"1": 1, "2": 2}[groups]
        ins = sizes["c"] if depthwise else sizes["c"] * count
        outs = ins if depthwise else sizes["o"] * count
        space = [sizes["h"], sizes["w"], 4][:dims]
        least = 1 + (taps - 1) * 2
        space = [max(s, least) for s in space]
        shape = [ins, outs // count] if transposed else [outs, ins // count]
        image = torch.randn(2, ins, *space, generator=g) / 2
        weight = torch.randn(*shape, *[taps] * dims, generator=g) / 2
        bias = torch.randn(outs, generator=g).to(dtype)
        weight = _image(weight.to(dtype), w if not depthwise else "first")
        result = layer(torch.zeros(2, ins, *space), torch.zeros(*shape, *[taps] * dims), groups=count, **named)
        residual = _image((torch.randn(result.shape, generator=g)).to(dtype), "last" if x == "last" else "first")
        return [_image(image.to(dtype), x), weight, bias, residual]

    def run(x: Any, w: Any, b: Any, r: Any, layer: Any = layer) -> Any:
        count = {"1": 1, "2": 2}.get(groups) or x.shape[1]
        y = layer(x, w, b, groups=count, **named)
        return F.relu(y) + r if after == "relu and residual" else y

    def reference(x: Any, w: Any, b: Any, r: Any) -> Any:
        return gradients(3, run, (x, w, b, r), dtype) if gradient else run(x, w, b, r)

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        x, w, b, r = (t.detach() for t in wide)
        y = layer(x, w, b, groups={"1": 1, "2": 2}.get(groups) or x.shape[1], **named)
        if not gradient:
            terms = layer(x.abs(), w.abs(), b.abs(), groups={"1": 1, "2": 2}.get(groups) or x.shape[1], **named)
            return [rounding(dtype) * y.abs() + of_sum(w[0].numel() * 2, dtype) * (terms + r.abs())]
        # Sizes of gradients' terms, from the same formulas over absolute values.
        sizes = [t.abs().requires_grad_() for t in (x, w, b)]
        out = layer(*sizes, groups={"1": 1, "2": 2}.get(groups) or x.shape[1], **named)
        terms = [out.detach(), *torch.autograd.grad(out, sizes, upstream(out, dtype).double().abs())]
        counts = [w[0].numel() * 2, w.numel(), y.numel(), y.numel()]
        return [of_sum(n, dtype) * t for n, t in zip(counts, terms, strict=True)]

    tile = kernel["tile"]
    edges = {"c": (getattr(tile, "bk", 8),), "o": (getattr(tile, "bm", 8), getattr(tile, "bn", 8))}
    high = 40 if dims < 3 else 12
    spans = {
        "c": Span(1, high, edges=tuple(e for e in edges["c"] if e <= 32)),
        "o": Span(1, high, edges=tuple(e for e in edges["o"] if e <= 64)),
        "h": Span(1, 12), "w": Span(1, 20 if dims < 3 else 6),
    }  # fmt: skip
    return Program(
        run, operands, judged(reference, allowed), spans,
        lambda: _context(tile, kernel["products"], kernel["parts"]), dynamic=sizes == "vary",
        gradients=3 if gradient else 0, together=2,
    )  # fmt: skip


def _axes(info: DeviceInfo) -> Axes:
    def kernel(tile: Tile | None, products: bool, parts: int = 0) -> dict[str, Any]:
        return {"tile": tile, "products": products, "parts": parts}

    kernels = {
        "direct": kernel(DirectTile(4, 4, blocks=16), False),
        "direct, odd": kernel(DirectTile(3, 5, blocks=8), False),
        "tiled": kernel(TILED[-1], False),
        "tiled, in parts": kernel(TILED[-1], False, 3),
        "direct, in parts": kernel(DirectTile(2, 2, blocks=16), False, 3),
        "register products": kernel(RegisterTile(16, 32, 8, 4, 4), True),
        "subgroup products": kernel(SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8), True),
        "subgroup products, in parts": kernel(SubgroupTile(16, 32, 16, 16, 16, (8, 8, 8), emulated=8, splits=3), True),
    }
    if on_gpu(info):
        kernels |= {"chosen": kernel(None, True), "chosen, no products": kernel(None, False)}
        kernels |= {"large tiles": kernel(TILED[0], False)}
    return {
        "kernel": {name.replace(", ", " "): value for name, value in kernels.items()},
        "dtype": FLOATS,
        "window": options(*_WINDOWS),
        "groups": options("1", "2"),
        "x": options("first", "last", "view"),
        "w": options("first", "last"),
        "after": options("none", "relu and residual"),
        "way": options("forward", "transposed", "gradients"),
        "sizes": options("fixed", "vary"),
    }


def _depthwise_axes(info: DeviceInfo) -> Axes:
    common = _axes(info)
    kernel = {"own template": {"tile": None, "products": True, "parts": 0}, "general": common["kernel"]["direct"]}
    own = {"groups": options("depthwise"), "w": options("first"), "way": options("forward", "gradients")}
    return {**common, "kernel": kernel, "dtype": SINGLES, **own}


FAMILIES = (
    Family("convolutions", _axes, _convolution),
    Family("convolutions, depthwise", _depthwise_axes, _convolution),
)
