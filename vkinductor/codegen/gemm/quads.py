"""Blocks of halves that leave by quads of lanes: where the rows of 16 bytes lie, as GLSL.

On an H200 four neighbouring lanes have two neighbours each of a row of a matrix of 8 columns, and the same of the next
matrices one after the other. They exchange until each has a row of one matrix, of which the template stores 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkinductor.runtime.matrix_components import Places

# Of bits of an invocation's number and of a component's: two neighbours a lane, four lanes a row, four matrices.
_LANES, _COMPONENTS = (2, 4), (1, 8, 16)


@dataclass(frozen=True)
class Quads:
    """GLSL of where unit ``s`` of 8 components of invocation ``local`` begins when lanes have exchanged: row and column
    of the block, each the sum of an invocation's part and a unit's."""

    first_row: str
    first_column: str
    row: str
    column: str
    # Of component `q` before they exchange.
    element: str


def usual(rows: int, columns: int, threads: int) -> Places | None:
    """An order with quads, about as NVIDIA's driver 580 has one, for devices that are not here; None of matrices
    that are too small."""
    size = rows * columns
    components = size // threads
    if columns < 32 or rows < 8 or components < 8 or threads < 32 or size & (size - 1) or threads & (threads - 1):
        return None
    eight_rows = [columns, 2 * columns, 4 * columns]
    rest = [1 << b for b in range(5, size.bit_length() - 1) if 1 << b not in eight_rows]
    more = components.bit_length() - 1 - len(_COMPONENTS)
    return Places(columns, (*_LANES, *eight_rows, *rest[more:]), (*_COMPONENTS, *rest[:more]))


def quads(places: Places | None) -> Quads | None:
    """Those of a matrix, or None where its components do not lie like that."""
    if places is None or (places.invocation[:2], places.component[:3]) != (_LANES, _COMPONENTS):
        return None
    columns, unit = places.columns, places.component[3:]
    # A lane's part of a row is 8 columns then, no longer 2.
    invocation = [4 * count for count in _LANES] + list(places.invocation[2:])
    return Quads(
        _counted("local", _of_rows(invocation, columns)),
        _counted("local", _of_columns(invocation, columns)),
        _counted("s", _of_rows(unit, columns)),
        _counted("s", _of_columns(unit, columns)),
        f"({_counted('local', places.invocation)} + {_counted('q', places.component)})",
    )


def _of_rows(counts: Sequence[int], columns: int) -> list[int]:
    return [count // columns for count in counts]


def _of_columns(counts: Sequence[int], columns: int) -> list[int]:
    return [count % columns for count in counts]


def _counted(name: str, counts: Sequence[int]) -> str:
    """GLSL of what the bits of ``name`` count together; runs of bits that count like a number's are one term."""
    terms, bit = [], 0
    while bit < len(counts):
        length = 1
        while bit + length < len(counts) and counts[bit] and counts[bit + length] == counts[bit] << length:
            length += 1
        if counts[bit]:
            terms.append(f"({name} >> {bit} & {(1 << length) - 1}) * {counts[bit]}")
        bit += length
    return f"({' + '.join(terms)})" if terms else "0"
