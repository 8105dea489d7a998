"""How kernels read rows of blocks: the GLSL function of each format, and what it takes of addresses.

Sizes of blocks are device/quantized.py's, the functions are templates/lib/quantized.glsl's.
"""

from __future__ import annotations

from dataclasses import dataclass

from vkinductor.device.quantized import FORMATS, Format, format_of

# Weights that one call of a dequantising function gives.
UNIT = 32
# The widest load of an invocation, in bytes.
_WIDEST = 16


@dataclass(frozen=True)
class Packing:
    """A format as kernels see it.

    ``alignment``: rows (and so all blocks) begin at a multiple of as many bytes. ``dequantize``: the GLSL function
    ``(uint64_t row, int unit, out float values[32])`` of 32 weights.
    """

    format: Format
    alignment: int
    dequantize: str


def _packing(entry: Format) -> Packing:
    return Packing(entry, min(_WIDEST, entry.nbytes & -entry.nbytes), f"vk_dequantize_{entry.name.lower()}")


PACKINGS: dict[int, Packing] = {number: _packing(entry) for number, entry in FORMATS.items()}


def packing(number: int) -> Packing:
    """The packing of a format's number; raises ValueError that lists those there are."""
    return PACKINGS[format_of(number).number]
