"""Elementwise kernels that read along another dimension than they write: transposes, permuted copies, NHWC <-> NCHW.

A workgroup computes a tile of elements. What lies the other way is read along its own dimension into a shared array
first, whose rows are one longer than the tile, so that a column of it lies in different banks. Of 16-bit elements each
word of the array holds two that are written side by side, as they lie in memory: an invocation loads the same part of
two rows, and half as many words go through shared memory, without a conversion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from . import vectorize
from .alignment import divides
from .types import glsl_type
from .vectorize import LOAD, Access, Dimension, Wide, unpacked, wide_load, word_count
from .vectors import PICK

# Invocations side by side along a row that is read: 128 bytes of it, and few of 32 banks twice when they are kept.
_NEAR = 8


@dataclass(frozen=True)
class Loaded:
    """One operand's part: shared array ``name`` of ``words`` (GLSL type ``register``), ``pitch`` apart, and how
    invocations fill it: from each of ``rows`` rows ``width`` elements, by ``lines`` that begin with the index of the
    first, with word v being ``value``. ``near``: invocations side by side along a row, before the next row's."""

    name: str
    register: str
    words: int
    pitch: int
    rows: int
    width: int
    near: int
    lines: list[str]
    value: str

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self.words * (8 if self.register in ("double", "int64_t", "uint64_t") else 4)


@dataclass(frozen=True)
class Tile:
    """Of ``wide`` x ``high`` elements. ``along`` x ``across``: lengths of the dimension that is written along and of
    the other; the index of an element is ``a + stride * b`` and what lies between the two (``inner``) and beyond them.
    ``count``: tiles in all."""

    wide: int
    high: int
    along: int
    across: int
    stride: int
    count: int
    loaded: tuple[Loaded, ...]
    body: Wide

    @property
    def inner(self) -> int:
        """Tiles apart by ``along`` elements."""
        return self.stride // self.along


@dataclass(frozen=True)
class _Across(Dimension):
    """Neighbours along entry ``symbol`` instead of along the whole index."""

    symbol: Any = None

    def kind(self, entry: Any, width: int) -> str:
        if entry.root is not self.tree:
            return "same"
        if entry.symbol() == self.symbol:
            return "next" if divides(width, entry.length) else "any"
        # Other digits of the index stay; what is not one of them may change.
        first, last = entry.divisor, entry.divisor * entry.length
        own = self.nodes[self.symbol]
        apart = divides(own.divisor * own.length, first) or divides(last, own.divisor)
        return "same" if apart else "any"


def find(
    lines: Sequence[str],
    dimension: Dimension,
    accesses: Sequence[Access],
    widths: Sequence[int],
    shapes: Sequence[tuple[int, int]],
    shared: int,
) -> Tile | None:
    """The tile that the kernel of the marked body ``lines`` is better computed in; None where there is none.

    ``widths``: elements an invocation may take at a time, best first; ``shapes``: of the tile (along, across), best
    first; ``shared``: bytes of shared memory.
    """
    text = [line for line in lines if not line.startswith(" ")]
    used = [a for a in accesses if any(f"@{a.number}{{" in line for line in text)]
    numel = dimension.tree.numel
    entries = {s: e for s, e in dimension.nodes.items() if e.root is dimension.tree}
    if not isinstance(numel, (int, sympy.Integer)):
        return None
    apart = {a.number: s for a in used if not a.store and (s := _across(a, entries)) is not None}
    kinds = set(apart.values())
    if len(kinds) != 1 or not any(a.store and _along(a, entries) for a in used):
        return None
    symbol = kinds.pop()
    across = entries[symbol]
    fast = [e for e in entries.values() if e.divisor == 1 and e.length != numel]
    digits = [n for entry in (across, *fast) for n in (entry.divisor, entry.length)]
    if not fast or not all(isinstance(n, (int, sympy.Integer)) for n in digits):
        return None
    along = min(int(e.length) for e in fast)
    stride, length = int(across.divisor), int(across.length)
    if stride % along or int(numel) % (stride * length):
        return None
    way = _Across(dimension.index, dimension.type, dimension.tree, dimension.nodes, symbol)

    def covered(shape: tuple[int, int]) -> int:
        wide, high = shape
        return -(-along // wide) * wide * (-(-length // high) * high)

    for wide, high in sorted(shapes, key=covered):
        if along < wide // 2 or length < high // 2:
            continue
        loaded = {n: _loaded(accesses[n], way, widths, wide, high, along) for n in apart}
        if sum(part.nbytes for part in loaded.values()) > shared:
            continue

        def bodies(width: int, loaded: dict[int, Loaded] = loaded) -> list[Wide]:
            return [vectorize.vectorize(_replaced(lines, accesses, loaded, width), width, dimension, accesses)]

        chosen = vectorize.best([w for w in widths if along % w == 0], bodies, fewest=0.0)
        tiles = -(-along // wide) * -(-length // high) * (int(numel) // (along * length))
        (body,) = bodies(1) if chosen is None else chosen[1]
        return Tile(wide, high, along, length, stride, tiles, tuple(loaded.values()), body)
    return None


def _across(access: Access, entries: dict[Any, Any]) -> Any:
    """The entry that ``access`` is contiguous in, where it is not the fastest."""
    index = sympy.expand(access.index)
    if access.dtype.itemsize > 8 or glsl_type(access.dtype).register == "bool":
        return None
    known = [s for s in index.free_symbols if s in entries]
    if len(known) != len(index.free_symbols) or not all(index.coeff(s).is_Integer for s in known):
        return None
    if sympy.expand(index - sum(index.coeff(s) * s for s in known)).free_symbols:
        return None
    fastest = [s for s in known if entries[s].divisor == 1]
    units = [s for s in known if index.coeff(s) == 1 and entries[s].divisor != 1]
    return units[0] if len(units) == 1 and len(fastest) == 1 and index.coeff(fastest[0]) >= 16 else None


def _along(access: Access, entries: dict[Any, Any]) -> bool:
    known = access.index.free_symbols & entries.keys()
    return any(entries[s].divisor == 1 and access.index.coeff(s) == 1 for s in known)


def _loaded(access: Access, way: _Across, widths: Sequence[int], wide: int, high: int, along: int) -> Loaded:
    name, entry = f"tile{access.number}", glsl_type(access.dtype)
    aligned = access.aligned
    width = next((w for w in widths if aligned and word_count(access, w) and way.apart(access.index, w) == 1), 1)
    if width == 1:
        lvalue = f"{access.var}.d[{access.text}]"
        if way.type != "int":
            lvalue = f"{entry.buffer}(uint64_t({access.var}) + uint64_t({access.text}) * {entry.nbytes}ul).d[0]"
        return Loaded(name, entry.register, wide * (high + 1), high + 1, 1, 1, high, [], entry.load.format(lvalue))
    lines, near = wide_load(access, width), min(_NEAR, high // width)
    if access.dtype.itemsize == 2 and along % 2 == 0:
        pitch = wide // 2 + 1
        return Loaded(name, "uint", high * pitch, pitch, 2, width, near, lines, f"wide{access.number}[v]")
    return Loaded(name, entry.register, wide * (high + 1), high + 1, 1, width, near, lines, unpacked(access))


def _replaced(lines: Sequence[str], accesses: Sequence[Access], loaded: dict[int, Loaded], width: int) -> list[str]:
    """``lines``, to be for ``width`` neighbours, with what is ``loaded`` as elements of their shared arrays."""

    def element(match: re.Match[str]) -> str:
        number = int(match[1])
        if number not in loaded:
            return match[0]
        part = loaded[number]
        if part.rows == 1:
            return f"{part.name}[(along + v) * {part.pitch} + across]"
        place = "(v & 1)" if width > 1 else "(along & 1)"
        word = f"{part.name}[across * {part.pitch} + along / 2 + (v >> 1)]"
        return PICK[accesses[number].dtype].format(word, place)

    return [LOAD.sub(element, line) for line in lines]
