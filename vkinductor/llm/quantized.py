"""Layers whose weights stay packed in a block format of GGUF: a linear layer and an embedding.

Owns the modules. Packed rows are uint8 buffers, so `.to(device)` moves them while `.half()` and `.to(dtype)` leave them
alone; activations keep the dtype that they come in. What packed bytes mean is device/quantized.py's.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from vkinductor.device import quantized
from vkinductor.llm.errors import ModelFormatError, UnsupportedModelError


def check_rows(packed: torch.Tensor, format: int) -> int:
    """The columns of `packed` (uint8, (rows, bytes of a row)) in the block format of that number.

    Raises UnsupportedModelError for a format that is not in device/quantized.py's table, ModelFormatError for anything
    but whole blocks in two dimensions.
    """
    if format not in quantized.FORMATS:
        known = ", ".join(entry.name for entry in quantized.FORMATS.values())
        raise UnsupportedModelError(f"weights of format {format} cannot stay packed: known are {known}")
    entry = quantized.FORMATS[format]
    if packed.dtype != torch.uint8 or packed.dim() != 2 or packed.shape[1] % entry.nbytes:
        raise ModelFormatError(
            f"weights in {entry.name} are rows of whole blocks of {entry.nbytes} bytes ({entry.elements} weights), not "
            f"{packed.dtype} of shape {tuple(packed.shape)}"
        )
    return entry.columns(packed.shape[1])


class _Packed(nn.Module):
    """What both layers are: rows of `packed`, a buffer of uint8 (rows, bytes of a row)."""

    packed: torch.Tensor

    def __init__(self, packed: torch.Tensor, format: int):
        super().__init__()
        self.columns = check_rows(packed, format)
        self.rows = packed.shape[0]
        self.format = format
        self.register_buffer("packed", packed)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights as floats, (rows, columns): for comparison."""
        return cast(torch.Tensor, quantized.dequantize(self.packed, self.format, dtype))

    def extra_repr(self) -> str:
        return f"{self.columns} -> {self.rows}, {quantized.FORMATS[self.format].name}"


class QuantizedLinear(_Packed):
    """``x @ weights.T + bias`` over packed rows.

    `packed`: uint8, (output features, bytes of a row) in the format of that number (device/quantized.py). `bias`:
    floats, (output features,), or None. x: (..., input features) of a floating dtype, in which the result is. Raises
    UnsupportedModelError or ModelFormatError as `check_rows`.
    """

    def __init__(self, packed: torch.Tensor, format: int, bias: torch.Tensor | None = None):
        super().__init__(packed, format)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, quantized.quantized_linear(x, self.packed, self.format, self.bias))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bias={self.bias is not None}"


class QuantizedEmbedding(_Packed):
    """Packed rows that are looked up by token, and that may serve as the head's weights too.

    `packed`: uint8, (tokens, bytes of a row). Only the rows that are looked up are expanded. Raises as
    `QuantizedLinear`.
    """

    def forward(self, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of `tokens` (int64, (...)) as (..., columns) in `dtype`."""
        return cast(torch.Tensor, quantized.dequantize(self.packed[tokens], self.format, dtype))

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """The tied head: (..., columns) to (..., tokens)."""
        return cast(torch.Tensor, quantized.quantized_linear(x, self.packed, self.format))


class Embedding(nn.Module):
    """The same over a matrix of floats (tokens, columns)."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.rows, self.columns = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of `tokens` (int64, (...)) as (..., columns) in `dtype`."""
        return nn.functional.embedding(tokens, self.weight).to(dtype)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """The tied head: (..., columns) to (..., tokens)."""
        return nn.functional.linear(x, self.weight)

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.columns}"
