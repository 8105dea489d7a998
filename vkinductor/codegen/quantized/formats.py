"""How kernels read rows of blocks: the GLSL function of each format, and what it takes of addresses.

Sizes of blocks are device/quantized.py's, the functions are templates/lib/quantized.glsl's.
"""

from __future__ import annotations

from dataclasses import dataclass

from vkinductor.device.quantized import FORMATS, Format, format_of

# Weights that one call of a dequantising function gives.
UNIT = 32


@dataclass(frozen=True)
class Packing:
    """A format as kernels see it.

    ``dequantize``: the GLSL function ``(uint64_t row, int unit, out float values[32])`` of 32 weights, for rows at a
    multiple of ``alignment`` bytes.
    """

    format: Format
    dequantize: str

    @property
    def alignment(self) -> int:
        """The format's."""
        return self.format.alignment


def _packing(entry: Format) -> Packing:
    return Packing(entry, f"vk_dequantize_{entry.name.lower()}")


PACKINGS: dict[int, Packing] = {number: _packing(entry) for number, entry in FORMATS.items()}


def packing(number: int) -> Packing:
    """The packing of a format's number; raises ValueError that lists those there are."""
    return PACKINGS[format_of(number).number]
