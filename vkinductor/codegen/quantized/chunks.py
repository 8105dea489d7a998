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


# A word of four-bit pairs 16 apart: blocks of 32.
_WORD = Chunk("(c >> 2) * 32 + (c & 3) * 4", (0, 16), 4, 1)
# Eight neighbours.
_EIGHT = Chunk("c * 8", (0,), 8, 1)
# Of a block of 256, eight bytes of pairs 32 apart, or a word of two bits of weights 32 apart.
_PAIRS = Chunk("(c >> 2) * 64 + (c & 3) * 8", (0, 32), 8, 2)
_TWOS = Chunk("(c >> 3) * 128 + (c & 7) * 4", (0, 32, 64, 96), 4, 4)

_CHUNKS = {
    "Q4_0": _WORD,
    "Q4_1": _WORD,
    "Q5_0": _WORD,
    "Q5_1": _WORD,
    "Q8_0": _EIGHT,
    "Q2_K": _TWOS,
    "Q3_K": _TWOS,
    "Q4_K": _PAIRS,
    "Q5_K": _PAIRS,
    "Q6_K": _TWOS,
    "IQ4_NL": _WORD,
    "IQ4_XS": _WORD,
}


def chunk(packing: Packing) -> Chunk:
    """How rows of a format are cut."""
    return _CHUNKS[packing.format.name]


def function(packing: Packing) -> str:
    """The GLSL function (uint64_t row, int c, out float q[weights], out vec2 scale[scales])."""
    return f"vk_chunk_{packing.format.name.lower()}"
