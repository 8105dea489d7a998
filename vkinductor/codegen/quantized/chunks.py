"""What an invocation of a product takes of a row at a time: which weights of it a chunk holds.

The functions that load chunks are templates/lib/quantized_chunks.glsl's.
"""

from __future__ import annotations

from dataclasses import dataclass

from .formats import Packing


@dataclass(frozen=True)
class Chunk:
    """Weights of a chunk are runs of neighbours: ``runs`` of them begin at these places from ``base`` (GLSL, by its
    number ``c``), each of ``length``. They have ``scales`` pairs of a factor and a summand, for equal parts."""

    base: str
    runs: tuple[int, ...]
    length: int
    scales: int

    @property
    def weights(self) -> int:
        """Of a chunk."""
        return len(self.runs) * self.length


# Of blocks of 32, eight bytes of pairs 16 apart: the low halves have another summand than the high ones, or the same.
_EIGHTS = Chunk("(c >> 1) * 32 + (c & 1) * 8", (0, 16), 8, 2)
_ALIKE = Chunk("(c >> 1) * 32 + (c & 1) * 8", (0, 16), 8, 1)
# Neighbours.
_SIXTEEN = Chunk("c * 16", (0,), 16, 1)
# Of a block of 256, sixteen bytes of pairs 32 apart, or eight bytes with two bits of weights 32 apart.
_PAIRS = Chunk("(c >> 1) * 64 + (c & 1) * 16", (0, 32), 16, 2)
_TWOS = Chunk("(c >> 2) * 128 + (c & 3) * 8", (0, 32, 64, 96), 8, 4)

_CHUNKS = {
    "Q4_0": _EIGHTS,
    "Q4_1": _EIGHTS,
    "Q5_0": _ALIKE,
    "Q5_1": _ALIKE,
    "Q8_0": _SIXTEEN,
    "Q2_K": _TWOS,
    "Q3_K": _TWOS,
    "Q4_K": _PAIRS,
    "Q5_K": _PAIRS,
    "Q6_K": _TWOS,
    "IQ4_NL": _ALIKE,
    "IQ4_XS": _ALIKE,
}


def chunk(packing: Packing) -> Chunk:
    """How rows of a format are cut."""
    return _CHUNKS[packing.format.name]


def function(packing: Packing) -> str:
    """The GLSL function (uint64_t row, int c, out float q[weights], out vec2 scale[scales])."""
    return f"vk_chunk_{packing.format.name.lower()}"
