"""Attention: forward and backward on every template, few queries against pieces of keys, FlexAttention."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from vkinductor.codegen import heuristics
from vkinductor.codegen.attention.decode import DecodeTile
from vkinductor.codegen.attention.decode_matrices import MatrixTile
from vkinductor.codegen.attention.subgroups import SubgroupTile
from vkinductor.codegen.attention.tiles import FMA_TILES, WorkgroupTile
from vkinductor.device import attention
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..check import gradients, upstream
from ..errors import SINGLE, TINY, judged, of_sum, rounding
from ..layouts import LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import SINGLES, on_gpu, options

_EMULATED = WorkgroupTile(16, 16, 32, emulated=True)
_LAZY = WorkgroupTile(16, 16, 32, emulated=True, lazy=True, early=True, peel=True)
_FLAT = SubgroupTile(2, 16, shape=(8, 8, 8), emulated=8)
_HIGH = SubgroupTile(2, 32, high=2, shape=(8, 16, 8), emulated=4)
_HIGH_BACKWARD = SubgroupTile(4, 16, high=2, shape=(8, 16, 8), emulated=4)
_NONE = {"attention_workgroup": False, "attention_subgroup": False, "attention_decode": False}
_NONE_BACKWARD = {
    "attention_workgroup_backward": False, "attention_subgroup_queries": False, "attention_subgroup_keys": False,
}  # fmt: skip


@contextlib.contextmanager
def _whole(forced: Mapping[str, Any]) -> Iterator[None]:
    with attention.whole(), heuristics.override(**forced):
        yield


def _laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """[B, H, L, D] as it is, as a projection leaves it (heads inside), or by LAYOUTS."""
    if layout == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return LAYOUTS[layout](x)


def _visible(kind: str, mask: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
    if kind == "causal":
        return torch.arange(keys) <= torch.arange(queries)[:, None]
    return mask if kind == "bool" else torch.ones((), dtype=torch.bool)


def _weights(q: Any, k: Any, mask: Any, kind: str) -> tuple[Any, Any]:
    """Softmax of scores [B, H, L, S] in double precision, and what scores may be off by."""
    share = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(share, 1)
    scale = q.shape[-1] ** -0.5
    scores = q @ k.mT * scale + (mask if kind == "bias" else 0)
    scores = scores.masked_fill(~_visible(kind, mask, q.shape[2], k.shape[2]), -math.inf)
    sizes = (q.detach().abs() @ k.detach().abs().mT) * scale
    off = of_sum(q.shape[-1]) * sizes.amax(-1, keepdim=True)
    return scores.softmax(-1).nan_to_num(0.0), off


def _reference(kind: str) -> Callable[..., Any]:
    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return _weights(q, k, mask, kind)[0] @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)

    return attend


def _off(dtype: torch.dtype, keys: int, scores: Any) -> Any:
    """What a weight may be off by, relative: its rounding as an operand of matrices, its exponential, its score."""
    own = rounding(dtype) if dtype != torch.float32 else 0.0
    return 2 * own + (16 + 2 * math.sqrt(keys)) * SINGLE + 2 * scores


def _lost(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The square of what a rounding of ``x`` to ``dtype`` may lose: nothing in float32, which kernels compute in."""
    if dtype == torch.float32:
        return torch.zeros_like(x)
    return (rounding(dtype) * x).square() + TINY[dtype] ** 2


def _added(squares: torch.Tensor) -> torch.Tensor:
    """What independent errors add up to, by the sum of their squares."""
    return 4 * squares.sqrt()


def _forward_bound(dtype: torch.dtype, kind: str) -> Callable[..., Any]:
    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        q, k, v, mask = wide
        p, scores = _weights(q, k, mask, kind)
        values = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        off = _off(torch.float32, k.shape[2], scores)
        return [off * (p @ values.abs()) + _added(_lost(p, dtype) @ values.square())]

    return allowed


def _sdpa(kind: str) -> Callable[..., Any]:
    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        given = mask if kind in ("bool", "bias") else None
        return F.scaled_dot_product_attention(q, k, v, given, is_causal=kind == "causal", enable_gqa=True)

    return attend


def _operands(dtype: torch.dtype, widths: tuple[int, int], share: int, kind: str, layout: str) -> Any:
    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        queries, keys = sizes["queries"], sizes["keys"]
        shapes = ((2, 2 * share, queries, widths[0]), (2, 2, keys, widths[0]), (2, 2, keys, widths[1]))
        made = [_laid(torch.randn(s, generator=g).to(dtype), layout) for s in shapes]
        if kind == "bool":
            seen = torch.rand(2, 1, queries, keys, generator=g) > 0.4
            seen[0, :, queries // 2] = False  # a row that sees nothing
            return [*made, seen]
        return [*made, torch.randn(2 * share, 1, keys, generator=g).to(dtype)]

    return operands


def _fits(forced: Mapping[str, Any], dtype: torch.dtype, widths: tuple[int, int], layout: str) -> bool:
    """Whether the templates forced are for such heads: matrices of halves, of rows that wide loads can read."""
    tiles = [tile for tile in forced.values() if isinstance(tile, (WorkgroupTile, SubgroupTile, MatrixTile))]
    if tiles and dtype == torch.float32:
        return False
    whole = all(width % 16 == 0 for width in widths) and layout in ("rows", "heads inside")
    return whole or not any(isinstance(tile, (SubgroupTile, MatrixTile)) for tile in tiles)


def _forward(
    kernel: Mapping[str, Any], dtype: torch.dtype, widths: tuple[int, int], share: int, mask: str, layout: str,
    sizes: str, spans: Mapping[str, Span] | None = None,
) -> Program | None:  # fmt: skip
    if not _fits(kernel, dtype, widths, layout):
        return None
    return Program(
        _sdpa(mask), _operands(dtype, widths, share, mask, layout),
        judged(_reference(mask), _forward_bound(dtype, mask)),
        spans or {"queries": Span(edges=(16, 32, 64)), "keys": Span(edges=(16, 32, 64))},
        lambda: _whole(kernel), dynamic=sizes == "vary", together=2,
    )  # fmt: skip


def _common(kernels: Mapping[str, Any], info: DeviceInfo) -> Axes:
    widths = {"16": (16, 16), "32 and 64": (32, 64), "20 and 9": (20, 9), "64 and 40": (64, 40)}
    if on_gpu(info):
        widths |= {"64": (64, 64), "128": (128, 128), "96": (96, 96), "256": (256, 256)}
    return {
        "kernel": kernels,
        "dtype": SINGLES,
        "widths": widths,
        "share": {"1": 1, "3": 3},
        "mask": options("none", "causal", "bool", "bias"),
        "layout": options("rows", "heads inside", "offset", "columns", "padded"),
        "sizes": options("fixed", "vary"),
    }


def _forward_axes(info: DeviceInfo) -> Axes:
    kernels: dict[str, Any] = {f"fma {i}": {**_NONE, "attention_tile": i} for i in range(len(FMA_TILES))}
    kernels |= {
        "workgroup": {**_NONE, "attention_workgroup": _EMULATED},
        "workgroup lazy": {**_NONE, "attention_workgroup": _LAZY},
        "subgroup": {**_NONE, "attention_subgroup": _FLAT},
        "subgroup high": {**_NONE, "attention_subgroup": _HIGH},
        "chosen": {},
    }
    if on_gpu(info):
        kernels |= {"chosen without few": {"attention_decode": False}}
        kernels |= {"chosen without subgroup": {"attention_decode": False, "attention_subgroup": False}}
    return _common(kernels, info)


def _few_axes(info: DeviceInfo) -> Axes:
    tiles: list[Any] = [DecodeTile(32, 1), DecodeTile(64, 2), DecodeTile(32, 1, 4), DecodeTile(64, 2, 2)]
    tiles += [MatrixTile(2, 16, 64, emulated=8), MatrixTile(1, 32, 128, emulated=8), MatrixTile(3, 16, 48, emulated=8)]
    tiles += [MatrixTile(2, 16, 64, emulated=8, turned=True)]
    kernels = {str(tile): {"attention_decode": tile} for tile in tiles}
    common = _common({**{_plain(n): k for n, k in kernels.items()}, "chosen": {}}, info)
    return {**common, "queries": {"1": Span(1, 1), "2-8": Span(2, 8)}}


def _plain(text: str) -> str:
    """Without what separates options in a program's name."""
    return text.replace(", ", " ").replace("=", " ")


def _few(queries: Span, **more: Any) -> Program | None:
    keys = Span(1, 130, edges=(32, 64, 128, 256))
    tile = more["kernel"].get("attention_decode")
    width, width_v = more["widths"]
    wide = 16 // more["dtype"].itemsize
    rows = min(8, more["share"] * queries.high)
    if isinstance(tile, DecodeTile) and tile.loads:
        even = width % wide == 0 == width_v % wide and more["layout"] in ("rows", "heads inside")
        if not even or not tile.fits(context.get().info, rows, width, width_v // wide, width // wide):
            return None
    if isinstance(tile, MatrixTile) and not tile.fits(context.get().info, more["dtype"], width, width_v):
        return None
    if queries.high * more["share"] > 32 or (more["sizes"] == "vary" and queries.high == 1):
        return None
    return _forward(**more, spans={"queries": queries, "keys": keys})


def _gradient_bound(dtype: torch.dtype, kind: str) -> Callable[..., Any]:
    """By the sizes of what is summed: weights times what their gradients are differences of. Every sum is in float32.

    In half precision four things are rounded beside the results, each once and to nearest: weights as operands of
    matrices, for the result and for v's gradient; gradients of scores, p (g v - d), for those of q and k; and the
    result before d = sum(g o) is taken of it, which by its own weights was off already. A row's d is the same for all
    its keys. Roundings are independent: what they add up to goes by the root of the sum of squares, over the heads of
    a group as well.
    """

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        q, k, v, mask = (x.detach() for x in wide)
        out = wants[0].detach()
        share, groups, scale = q.shape[1] // k.shape[1], k.shape[1], q.shape[-1] ** -0.5
        g = upstream(out, dtype).double()
        p, scores = _weights(q, k, mask, kind)
        off = _off(torch.float32, k.shape[2], scores)
        keys, values = (x.repeat_interleave(share, 1) for x in (k, v))
        # The gradient of a score: p * (g v - the sum over keys of p * (g v)).
        products = g @ values.mT
        inner = g.abs() @ values.abs().mT
        ds = p * (inner + (p * inner).sum(-1, keepdim=True)) * scale
        change = _lost(p * (products - (p * products).sum(-1, keepdim=True)), dtype) * scale**2
        weights, stored = _lost(p, dtype) * products.square(), _lost(out, dtype) * g.square()
        d = _added(weights.sum(-1, keepdim=True) + stored.sum(-1, keepdim=True)) * scale

        def summed(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(1, (groups, share)).sum(2)

        return [
            off * (p @ values.abs()) + _added(_lost(p, dtype) @ values.square()),
            off * (ds @ keys.abs()) + _added(change @ keys.square()) + d * (p @ keys).abs(),
            summed((off * ds).mT @ q.abs()) + _added(summed(change.mT @ q.square()))
            + summed((p * d).square().mT @ q.square()).sqrt(),
            summed((off * p).mT @ g.abs()) + _added(summed(_lost(p, dtype).mT @ g.square())),
        ]  # fmt: skip

    return allowed


def _backward(
    kernel: Mapping[str, Any], dtype: torch.dtype, widths: tuple[int, int], share: int, mask: str, layout: str,
    sizes: str,
) -> Program | None:  # fmt: skip
    if not _fits(kernel, dtype, widths, layout):
        return None
    reference = _reference(mask)
    return Program(
        _sdpa(mask), _operands(dtype, widths, share, mask, layout),
        judged(lambda *wide: gradients(3, reference, wide, dtype), _gradient_bound(dtype, mask)),
        {"queries": Span(1, 100, edges=(16, 32, 64)), "keys": Span(1, 100, edges=(16, 32, 64))},
        lambda: _whole(kernel), dynamic=sizes == "vary", gradients=3, together=2,
    )  # fmt: skip


def _backward_axes(info: DeviceInfo) -> Axes:
    plain = {**_NONE, **_NONE_BACKWARD}
    kernels: dict[str, Any] = {f"fma {i}": {**plain, "attention_tile": i} for i in range(4)}
    kernels |= {
        "workgroup": {**plain, "attention_workgroup_backward": _EMULATED},
        "subgroup": {**plain, "attention_subgroup_queries": _FLAT, "attention_subgroup_keys": _FLAT},
        "subgroup high": {
            **plain, "attention_subgroup_queries": _HIGH_BACKWARD, "attention_subgroup_keys": _HIGH_BACKWARD,
        },
        "chosen": {},
    }  # fmt: skip
    if on_gpu(info):
        kernels |= {"chosen without subgroup": {f"attention_subgroup{s}": False for s in ("", "_queries", "_keys")}}
    return _common(kernels, info)


SCORES: dict[str, Callable[..., Any]] = {
    "causal": lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf),
    "soft cap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "distance": lambda s, b, h, i, j: s - (i - j).abs() * 0.1 * (h + 1) - 0.01 * b,
    "window": lambda s, b, h, i, j: torch.where((i - j).abs() < 20, s, -math.inf),
}


def _flex(score: str, dtype: torch.dtype, share: int, tile: int, layout: str, gradient: bool) -> Program:
    change = SCORES[score]

    def function(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flex_attention(q, k, v, score_mod=change, enable_gqa=True)

    def weights(q: Any, k: Any) -> tuple[Any, Any]:
        keys = k.repeat_interleave(share, 1)
        scores = q @ keys.mT * q.shape[-1] ** -0.5
        places = [torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate(scores.shape)]
        sizes = q.detach().abs() @ keys.detach().abs().mT * q.shape[-1] ** -0.5
        off = of_sum(q.shape[-1]) * sizes.amax(-1, keepdim=True) + 40 * SINGLE
        return change(scores, *places).softmax(-1).nan_to_num(0.0), off

    def reference(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return weights(q, k)[0] @ v.repeat_interleave(share, 1)

    def forward(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        q, k, v, _ = (x.detach() for x in wide)
        p, scores = weights(q, k)
        return [_off(dtype, k.shape[2], scores) * (p @ v.abs().repeat_interleave(share, 1))]

    def both(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        # By the largest of each gradient: scores are changed by functions of any slope.
        off = float(_off(dtype, 130, weights(*(x.detach() for x in wide[:2]))[1]).max()) + 4 * rounding(dtype)
        return [*forward(wide, wants), *(4 * off * w.abs().max() for w in wants[1:])]

    judge = judged(lambda *wide: gradients(3, reference, wide, dtype), both) if gradient else judged(reference, forward)
    return Program(
        function, _operands(dtype, (16, 16), share, "none", layout), judge,
        {"queries": Span(1, 80, edges=(16,)), "keys": Span(20, 80, edges=(32,))},
        lambda: _whole({"attention_tile": tile}), gradients=3 if gradient else 0, together=2,
    )  # fmt: skip


def _flex_axes(info: DeviceInfo) -> Axes:
    return {
        "score": options(*SCORES),
        "dtype": SINGLES,
        "share": {"1": 1, "2": 2},
        "tile": {"3": 3, **({"0": 0, "2": 2} if on_gpu(info) else {})},
        "layout": options("rows", "heads inside", "padded"),
        "gradient": {"no": False, "yes": True},
    }


FAMILIES = (
    Family("attention", _forward_axes, _forward),
    Family("attention, few queries", _few_axes, _few),
    Family("attention, gradients", _backward_axes, _backward),
    Family("FlexAttention", _flex_axes, _flex),
)
