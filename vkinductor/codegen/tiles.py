"""Elementwise kernels that read along another dimension than they write: transposes, permuted copies, NHWC <-> NCHW.

A workgroup computes a square of ``side`` x ``side`` elements. What lies the other way is read along its own dimension
into a shared array first, whose rows are one longer than the square, so that a column of it lies in different banks.
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
from .vectorize import Access, Dimension, Wide


@dataclass(frozen=True)
class Loaded:
    """One operand's square: GLSL ``register`` of the shared array ``name``, and how invocations fill it: ``width``
    elements each, by ``lines`` that begin with the index of the first and leave register v in ``value``."""

    name: str
    register: str
    width: int
    lines: list[str]
    value: str


@dataclass(frozen=True)
class Tile:
    """``along`` x ``across``: lengths of the dimension that is written along and of the other; the index of an element
    is ``a + stride * b`` and what lies between the two (``inner``) and beyond them. ``count``: squares in all."""

    side: int
    along: int
    across: int
    stride: int
    count: int
    loaded: tuple[Loaded, ...]
    body: Wide

    @property
    def inner(self) -> int:
        """Squares apart by ``along`` elements."""
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
    sides: Sequence[int],
    shared: int,
) -> Tile | None:
    """The tile that the kernel of the marked body ``lines`` is better computed in; None where there is none.

    ``widths``: elements an invocation may take at a time, best first; ``sides``: of the square, best first; ``shared``:
    bytes of shared memory.
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
    fits = [s for s in sides if along >= s // 2 and length >= s // 2]
    if stride % along or int(numel) % (stride * length) or not fits:
        return None
    best = min(fits, key=lambda s: (-(-along // s) * s * (-(-length // s) * s), sides.index(s)))
    sizes = {a.number: max(4, a.dtype.itemsize) for a in used}
    if sum(sizes[n] for n in apart) * best * (best + 1) > shared:
        return None
    loaded = []
    for number in apart:
        way = _Across(dimension.index, dimension.type, dimension.tree, dimension.nodes, symbol)
        loaded.append(_loaded(accesses[number], way, widths))
    marked = _replaced(lines, apart, best)
    chosen = vectorize.best(
        [*[w for w in widths if along % w == 0], 1],
        lambda w: [vectorize.vectorize(marked, w, dimension, accesses)],
        fewest=0.0,
    )
    squares = -(-along // best) * -(-length // best) * (int(numel) // (along * length))
    body = vectorize.vectorize(marked, 1, dimension, accesses) if chosen is None else chosen[1][0]
    return Tile(best, along, length, stride, squares, tuple(loaded), body)


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


def _loaded(access: Access, way: _Across, widths: Sequence[int]) -> Loaded:
    name, register = f"tile{access.number}", glsl_type(access.dtype).register
    for width in widths:
        if access.aligned and vectorize.word_count(access, width) and way.apart(access.index, width) == 1:
            value = vectorize.unpacked(access)
            return Loaded(name, register, width, vectorize.wide_load(access, width), value)
    lvalue = f"{access.var}.d[{access.text}]"
    if way.type != "int":
        entry = glsl_type(access.dtype)
        lvalue = f"{entry.buffer}(uint64_t({access.var}) + uint64_t({access.text}) * {entry.nbytes}ul).d[0]"
    return Loaded(name, register, 1, [], glsl_type(access.dtype).load.format(lvalue))


def _replaced(lines: Sequence[str], apart: dict[int, Any], side: int) -> list[str]:
    """``lines`` with the accesses ``apart`` as elements of their shared arrays."""

    def element(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"tile{number}[(along + v) * {side + 1} + across]" if number in apart else match[0]

    return [vectorize.LOAD.sub(element, line) for line in lines]
