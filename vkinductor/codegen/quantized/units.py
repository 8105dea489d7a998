"""What an invocation takes of a row of blocks at a time where x waits in shared memory: 64 weights, by their words.

The functions that decode units are templates/lib/quantized_units.glsl's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkinductor.device.quantized import Format, format_of

# Weights of a unit: two blocks of x, which has a scale for each where it is bytes.
WEIGHTS = 64
BLOCK = 32


@dataclass(frozen=True)
class Unit:
    """``pieces``: of words, the byte of the row where they begin (GLSL, by the unit's number ``u``), how many follow.

    All begin at multiples of ``alignment`` bytes. ``blocks``: the numbers of its two blocks of x (GLSL). ``parts``: how
    many have a scale of their own, of bytes. ``offset``: whether bytes have a summand. ``floats``: whether there is a
    function that gives floats.
    """

    pieces: tuple[tuple[str, int], ...]
    alignment: int
    blocks: tuple[str, str] = ("2 * u", "2 * u + 1")
    parts: int = 2
    offset: bool = False
    floats: bool = False

    @property
    def words(self) -> int:
        """Of a unit."""
        return sum(count for _, count in self.pieces)


def _pair(nbytes: int, **named: Any) -> Unit:
    """Two blocks of 32 weights, which begin at every fourth byte where one does not."""
    return Unit(((f"u * {2 * nbytes}", nbytes // 2),), min(16, 2 * nbytes & -(2 * nbytes)), **named)


_SIX = "(u >> 2) * 210 + "
_UNITS = {
    "Q4_0": _pair(18, floats=True),
    "Q4_1": _pair(20, floats=True, offset=True),
    "Q5_0": _pair(22),
    "Q5_1": _pair(24, offset=True),
    "Q8_0": _pair(34, floats=True),
    "Q4_K": Unit(
        (("(u >> 2) * 144", 4), ("(u >> 2) * 144 + 16 + (u & 3) * 32", 8)), 16, offset=True, floats=True
    ),
    "Q5_K": Unit(
        (("(u >> 2) * 176", 4), ("(u >> 2) * 176 + 16", 8), ("(u >> 2) * 176 + 48 + (u & 3) * 32", 8)), 16, offset=True
    ),
    "Q6_K": Unit(
        (
            (f"{_SIX}((u >> 1) & 1) * 64 + (u & 1) * 32", 8),
            (f"{_SIX}128 + ((u >> 1) & 1) * 32", 8),
            (f"{_SIX}192 + ((u >> 1) & 1) * 8", 2),
            (f"{_SIX}206", 1),
        ),
        2,
        blocks=("8 * (u >> 2) + 4 * ((u >> 1) & 1) + (u & 1)", "8 * (u >> 2) + 4 * ((u >> 1) & 1) + (u & 1) + 2"),
        parts=4,
    ),
}  # fmt: skip


def unit(number: int) -> Unit | None:
    """How rows of a format (its number) are cut into units; None: they are not."""
    return _UNITS.get(format_of(number).name)


def function(entry: Format, bytes_: bool) -> str:
    """The GLSL function (uint w[words], int u, out q, out vec2 scale[parts]).

    q: uint [16] of bytes, or float [64], which are in 4 parts.
    """
    return f"vk_{'bytes' if bytes_ else 'floats'}_{entry.name.lower()}"
