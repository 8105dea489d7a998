"""Weights in GGUF's block formats: dequantised to the bit, and in products of few rows and many."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from vkinductor.codegen.quantized import gemv
from vkinductor.codegen.quantized.gemv import QuantizedTile
from vkinductor.device.quantized import FORMATS, Format, dequantize, dequantize_reference, quantized_linear
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..errors import exactly, judged, rounding
from ..layouts import LAYOUTS
from ..program import Axes, Draw, Family, Program
from ..sizes import Sizes, Span
from .products import SINGLES, on_gpu, options

BY_NAME: dict[str, Format] = {f.name: f for f in FORMATS.values()}
# Byte offsets of the halves that scale a block: any bytes there would be NaN or huge at times.
_SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
# What makes weights about as large as they are in networks: blocks of 256 have further scales under these.
_SIZE = {32: 2e-2, 256: 1e-3}


def blocks(entry: Format, rows: int, count: int, g: Draw) -> torch.Tensor:
    """Packed rows of ``count`` blocks each: random bytes, moderate scales."""
    data = torch.randint(0, 256, (rows, count, entry.nbytes), generator=g, dtype=torch.uint8)
    for place in _SCALES[entry.name]:
        scales = torch.randn(rows, count, 1, generator=g) * _SIZE[entry.elements]
        data[:, :, place : place + 2] = scales.half().view(torch.uint8)
    return data.reshape(rows, -1)


def _matrix(format: Format, dtype: torch.dtype, bytes: str, sizes: str) -> Program:
    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        if bytes == "any":
            shape = (sizes["rows"], sizes["blocks"] * format.nbytes)
            return [torch.randint(0, 256, shape, generator=g, dtype=torch.uint8)]
        return [blocks(format, sizes["rows"], sizes["blocks"], g)]

    def function(w: Any) -> Any:
        return dequantize(w, format.number, dtype)

    spans = {"rows": Span(1, 40), "blocks": Span(1, 9)}
    reference = exactly(lambda w: dequantize_reference(w, format.number, dtype))
    return Program(function, operands, reference, spans, dynamic=sizes == "vary")


def _matrix_axes(info: DeviceInfo) -> Axes:
    return {
        "format": BY_NAME,
        "dtype": SINGLES,
        "bytes": options("any", "moderate scales"),
        "sizes": options("fixed", "vary"),
    }


_AFTER: dict[str, Callable[[Any, Any, Any], Any]] = {
    "none": lambda y, b, r: y,
    "residual": lambda y, b, r: y + r,
    "silu and residual": lambda y, b, r: F.silu(y) + r,
}


def _product(
    format: Format, dtype: torch.dtype, tile: QuantizedTile | None, rows: Span, bias: bool, after: str, x: str
) -> Program | None:
    if rows.low > 16 and tile is not None:
        return None

    def operands(sizes: Sizes, g: Draw) -> list[Any]:
        m, n, count = sizes["m"], sizes["n"], sizes["blocks"]
        values = torch.randn(m, count * format.elements, generator=g).to(dtype)
        rest = [torch.randn(n, generator=g).to(dtype), torch.randn(m, n, generator=g).to(dtype)]
        return [LAYOUTS[x](values), blocks(format, n, count, g), *rest]

    def function(x: Any, w: Any, b: Any, r: Any) -> Any:
        return _AFTER[after](quantized_linear(x, w, format.number, b if bias else None), b, r)

    def weights(w: Any) -> torch.Tensor:
        return dequantize_reference(w, format.number).double().T

    def reference(x: Any, w: Any, b: Any, r: Any) -> Any:
        return _AFTER[after](x @ weights(w) + (b if bias else 0), b, r)

    def allowed(wide: Sequence[Any], wants: list[torch.Tensor]) -> list[Any]:
        x, w, b, _ = wide
        matrix = weights(w)
        y = x @ matrix + (b if bias else 0)
        # Sums of many products of integers and scales; for more rows weights become a matrix in x's dtype first.
        d = rounding(dtype) * y.abs() + 6e-7 * (x.abs() @ matrix.abs() + b.abs())
        if rows.low > 16:
            d = d + 4 * rounding(dtype) * (x.square() @ matrix.square()).sqrt()
        return [1.1 * d + (2e-6 if "silu" in after else 0)]

    span = Span(1, 9 if format.elements == 32 else 4, edges=(16,) if format.elements == 32 else ())
    spans = {"m": rows, "n": Span(1, 70), "blocks": span}
    return Program(
        function, operands, judged(reference, allowed), spans,
        lambda: contextlib.nullcontext() if tile is None else gemv.forced(tile), together=3,
    )  # fmt: skip


def _product_axes(info: DeviceInfo) -> Axes:
    tiles = [QuantizedTile(32, 16, 2, 1), QuantizedTile(32, 4, 2, 2), QuantizedTile(32, 32, 1, 2)]
    if on_gpu(info):
        tiles += [QuantizedTile(128, 128, 2, 2), QuantizedTile(128, 64, 2, 1), QuantizedTile(64, 32, 4, 1)]
    return {
        "format": BY_NAME,
        "dtype": SINGLES,
        "tile": {
            "chosen": None,
            **{f"{t.threads}x{t.lanes}x{t.rows}x{t.loads}": t for t in tiles if t.fits(info, 4)},
        },
        "rows": {"one": Span(1, 1), "few": Span(2, 4), "many": Span(17, 70)},
        "bias": {"no": False, "yes": True},
        "after": options(*_AFTER),
        "x": options("rows", "offset", "padded", "columns"),
    }


FAMILIES = (
    Family("dequantised matrices", _matrix_axes, _matrix),
    Family("products, quantised weights", _product_axes, _product),
)
