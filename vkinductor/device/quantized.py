"""Weights in GGUF's block formats as operators: a linear layer over packed rows, and packed rows as floats.

Owns the table of formats, the operators' schemas, shapes and what they mean (the CPU's kernels, by the `gguf` package's
own reference). Kernels of the device are codegen's, files are llm's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.device.eager import dispatch


@dataclass(frozen=True)
class Format:
    """A block format of GGUF: ``elements`` weights lie in ``nbytes`` bytes. ``number``: ggml's number of the type."""

    name: str
    number: int
    elements: int
    nbytes: int

    @property
    def alignment(self) -> int:
        """What addresses of rows are a multiple of, for kernels: at most 16 bytes, and no more than blocks keep."""
        return min(16, self.nbytes & -self.nbytes)

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of ``columns`` weights, a multiple of ``elements``."""
        return columns // self.elements * self.nbytes

    def columns(self, row_bytes: int) -> int:
        """Weights of a row of so many bytes."""
        return row_bytes // self.nbytes * self.elements


# Sizes as in ggml's type traits (the gguf package's GGML_QUANT_SIZES has the same).
FORMATS: dict[int, Format] = {
    entry.number: entry
    for entry in (
        Format("Q4_0", 2, 32, 18),
        Format("Q4_1", 3, 32, 20),
        Format("Q5_0", 6, 32, 22),
        Format("Q5_1", 7, 32, 24),
        Format("Q8_0", 8, 32, 34),
        Format("Q2_K", 10, 256, 84),
        Format("Q3_K", 11, 256, 110),
        Format("Q4_K", 12, 256, 144),
        Format("Q5_K", 13, 256, 176),
        Format("Q6_K", 14, 256, 210),
        Format("IQ4_NL", 20, 32, 18),
        Format("IQ4_XS", 23, 256, 136),
    )
}

# x [..., K] of floats, packed uint8 [N, bytes of K weights]: x @ dequantized.T + bias in x's dtype, summed in float32.
_LINEAR = "quantized_linear(Tensor x, Tensor packed, int format, Tensor? bias=None) -> Tensor"
# packed uint8 [..., bytes of K weights] as [..., K] of a floating dtype.
_DEQUANTIZE = "dequantize(Tensor packed, int format, ScalarType dtype) -> Tensor"
# Those rows of a table uint8 [V, bytes of K weights] that tokens (int32 or int64 [m]) name, negative ones from the end:
# [m, K]. On the device tokens that are out of bounds are taken for the nearest that is not.
_DEQUANTIZE_ROWS = "dequantize_rows(Tensor packed, Tensor tokens, int format, ScalarType dtype) -> Tensor"


def format_of(number: int) -> Format:
    """The format of that number; raises ValueError that lists those there are."""
    try:
        return FORMATS[number]
    except KeyError:
        known = ", ".join(f"{f.name} ({f.number})" for f in FORMATS.values())
        raise ValueError(f"unknown weight format {number}: known are {known}") from None


def _columns(packed: Any, number: int) -> Any:
    entry = format_of(number)
    if packed.dtype != torch.uint8:
        raise ValueError(f"weights in format {entry.name} are bytes (uint8), not {packed.dtype}")
    if packed.shape[-1] % entry.nbytes:
        raise ValueError(f"rows of {packed.shape[-1]} bytes are no whole blocks of {entry.name} ({entry.nbytes} bytes)")
    return packed.shape[-1] // entry.nbytes * entry.elements


def _linear_shape(x: Any, packed: Any, format: int, bias: Any = None) -> torch.Tensor:
    columns = _columns(packed, format)
    torch._check(x.shape[-1] == columns, lambda: f"x has {x.shape[-1]} columns, the weights {columns}")
    return x.new_empty((*x.shape[:-1], packed.shape[0]))


def _dequantize_shape(packed: Any, format: int, dtype: torch.dtype) -> torch.Tensor:
    return packed.new_empty((*packed.shape[:-1], _columns(packed, format)), dtype=dtype)


def _rows_shape(packed: Any, tokens: Any, format: int, dtype: torch.dtype) -> torch.Tensor:
    torch._check(packed.dim() == 2, lambda: f"a table has 2 dimensions, not {packed.dim()}")
    known = tokens.dim() == 1 and tokens.dtype in (torch.int32, torch.int64)
    torch._check(known, lambda: f"tokens are {tokens.dtype} {list(tokens.shape)}, not int32 or int64 [m]")
    return packed.new_empty((tokens.shape[0], _columns(packed, format)), dtype=dtype)


def rows_reference(packed: torch.Tensor, tokens: torch.Tensor, format: int, dtype: torch.dtype) -> torch.Tensor:
    """``vkinductor.dequantize_rows`` on the CPU."""
    return dequantize_reference(packed[tokens], format, dtype)


def dequantize_reference(packed: torch.Tensor, format: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """``vkinductor.dequantize`` on the CPU by the `gguf` package, in float32 before it is rounded to ``dtype``."""
    import gguf

    columns = _columns(packed, format)
    rows = packed.cpu().contiguous().reshape(-1, packed.shape[-1]).numpy()
    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(format))
    return torch.from_numpy(values).reshape(*packed.shape[:-1], columns).to(dtype)


def linear_reference(x: torch.Tensor, packed: torch.Tensor, format: int, bias: Any = None) -> torch.Tensor:
    """``vkinductor.quantized_linear`` on the CPU: weights and sums in float32, rounded to x's dtype once."""
    product = x.float() @ dequantize_reference(packed, format).T
    return (product if bias is None else product + bias.float()).to(x.dtype)


def _packed(packed: torch.Tensor, number: int) -> torch.Tensor:
    """``packed`` as kernels take it: rows one after the other, from an address that blocks may begin at."""
    packed = packed.contiguous()
    return packed.clone() if packed.data_ptr() % format_of(number).alignment else packed


def _linear_on_device(x: torch.Tensor, packed: torch.Tensor, format: int, bias: Any = None) -> Any:
    return dispatch(quantized_linear, x.contiguous(), _packed(packed, format), format, bias)


def _dequantize_on_device(packed: torch.Tensor, format: int, dtype: torch.dtype) -> Any:
    return dispatch(dequantize, _packed(packed, format), format, dtype)


def _rows_on_device(packed: torch.Tensor, tokens: torch.Tensor, format: int, dtype: torch.dtype) -> Any:
    return dispatch(dequantize_rows, _packed(packed, format), tokens, format, dtype)


def _declare() -> torch.library.Library:
    library = torch.library.Library("vkinductor", "FRAGMENT")
    for schema, shapes, kernel in (
        (_LINEAR, _linear_shape, linear_reference),
        (_DEQUANTIZE, _dequantize_shape, dequantize_reference),
        (_DEQUANTIZE_ROWS, _rows_shape, rows_reference),
    ):
        name = schema.partition("(")[0]
        library.define(schema)
        torch.library.register_fake(f"vkinductor::{name}", shapes, lib=library)
        library.impl(name, kernel, "CPU")
    return library


_LIBRARY = _declare()

quantized_linear = torch.ops.vkinductor.quantized_linear.default
dequantize = torch.ops.vkinductor.dequantize.default
dequantize_rows = torch.ops.vkinductor.dequantize_rows.default


def register() -> None:
    """Add the device's kernels."""
    _LIBRARY.impl("quantized_linear", _linear_on_device, "PrivateUse1")
    _LIBRARY.impl("dequantize", _dequantize_on_device, "PrivateUse1")
    _LIBRARY.impl("dequantize_rows", _rows_on_device, "PrivateUse1")
