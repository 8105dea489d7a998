"""Linear layers that share rows, with a norm before and a gate after them (vkinductor.fused_linear)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from vkinductor.codegen.fused.tiles import FusedTile, forced
from vkinductor.device.fused_linear import DENSE, GATES, fused_linear
from vkinductor.device.quantized import dequantize_reference
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..errors import SINGLE, judged, of_sum, rounding
from ..layouts import LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import SINGLES, on_gpu, options
from .quantized import BY_NAME, blocks

_EPS = 1e-5
_FORMATS = ("dense", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL")


def _normalized(x: torch.Tensor, norm: str, gain: Any, shift: Any) -> torch.Tensor:
    if norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    if norm:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPS) * gain
    return x + shift if norm == "layer" else x


def _layers(
    tile: FusedTile | None, dtype: torch.dtype, norm: str, gate: str, bias: bool, weights: str, x: str, rows: Span
) -> Program | None:
    entry = BY_NAME.get(weights)
    number = DENSE if entry is None else entry.number

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        m, n = sizes["m"], sizes["n"]
        k = sizes["k"] if entry is None else sizes["k"] * entry.elements
        second = n if gate else sizes["p"]

        def weight(rows: int) -> torch.Tensor:
            if entry is not None:
                return blocks(entry, rows, sizes["k"], g)
            return torch.randn(rows, k, generator=g).mul(k**-0.5).to(dtype)

        made = [weight(rows) for rows in (n, second)]
        ones = [torch.randn(size, generator=g).to(dtype) for size in (k, k, n, second)]
        offset = 3.0 if norm == "layer" else 0.0
        return [LAYOUTS[x]((torch.randn(m, k, generator=g) + offset).to(dtype)), *made, *ones]

    def function(x: Any, v: Any, w: Any, gain: Any, shift: Any, b: Any, c: Any) -> Any:
        return fused_linear(
            x, [v, w], [number, number], [b, c] if bias else [None, None], gate=gate, norm=norm,
            eps=_EPS if norm else 0.0, gain=gain if norm else None, shift=shift if norm == "layer" else None,
        )  # fmt: skip

    def dense(w: Any) -> torch.Tensor:
        return w if entry is None else dequantize_reference(w, number).double()

    def results(x: Any, v: Any, w: Any, gain: Any, shift: Any, b: Any, c: Any) -> list[tuple[Any, Any]]:
        """Each product, and what it may be off by."""
        row = _normalized(x, norm, gain, shift)
        size = x.abs().amax(-1, keepdim=True) / x.std(-1, keepdim=True, unbiased=False).clamp(min=1e-3)
        worse = (1 + size) * gain.abs() + shift.abs() if norm else row.abs()
        found = []
        for weight, own in ((dense(v), b), (dense(w), c)):
            terms = (row.abs() + worse) @ weight.abs().T + own.abs()
            inside = 4 * rounding(dtype) * (row.square() @ weight.square().T).sqrt() if dtype != torch.float32 else 0.0
            found.append((row @ weight.T + (own if bias else 0), (of_sum(x.shape[1]) + 6e-7) * terms + inside))
        return found

    def reference(*wide: Any) -> Any:
        (first, _), (second, _) = results(*wide)
        return GATES[gate](first) * second if gate else torch.cat([first, second], -1)

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        (first, d), (second, e) = results(*wide)
        if not gate:
            return [torch.cat([d, e], -1)]
        act = GATES[gate](first).abs()
        return [(1.13 * d + 2e-6) * (second.abs() + e) + act * e + 8 * SINGLE * act * second.abs()]

    k = Span(2, 130, edges=(16, 32, 64, 128)) if entry is None else Span(1, 5 if entry.elements == 32 else 2)
    spans = {"m": rows, "n": Span(1, 60), "p": Span(1, 40), "k": k}
    return Program(
        function,
        operands,
        judged(reference, allowed),
        spans,
        lambda: contextlib.nullcontext() if tile is None else forced(tile),
        together=3,
    )


def _axes(info: DeviceInfo) -> Axes:
    tiles = [FusedTile(32, 4, 2, 2), FusedTile(16, 8, 4, 1), FusedTile(64, 64, 2, 2), FusedTile(32, 1, 1, 2)]
    tiles += [FusedTile(256, 32, 4, 2), FusedTile(128, 64, 2, 2)] if on_gpu(info) else []
    return {
        "tile": {"chosen": None, **{f"{t.threads}x{t.lanes}x{t.rows}x{t.loads}": t for t in tiles}},
        "dtype": SINGLES,
        "norm": options("", "rms", "layer"),
        "gate": options("", *GATES),
        "bias": {"no": False, "yes": True},
        "weights": options(*_FORMATS),
        "x": options("rows", "offset", "padded"),
        "rows": {"one": Span(1, 1), "few": Span(2, 4), "more": Span(5, 19)},
    }


FAMILIES = (Family("fused linear layers", _axes, _layers),)
