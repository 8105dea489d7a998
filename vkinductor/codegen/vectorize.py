"""Wide loads and stores: a body written for one element, turned into one for ``width`` neighbours.

The kernel writes its body for one element and marks each load and store. Here the marked body becomes three parts:
what is the same for all neighbours and the wide loads, once; the body, in a loop over the neighbours that drivers
unroll; the wide stores, once. An access that is not known to be contiguous and aligned stays one of a single element
inside the loop, so that nothing but speed depends on what is recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from .alignment import WIDEST, divides
from .types import REGISTERS, glsl_type
from .vectors import element, picked_from

# @number{scalar GLSL}@: an access as the kernel writes it. A store is followed by " = value;".
LOAD = re.compile(r"@(\d+)\{(.*?)\}@")
_STORE = re.compile(r"@(\d+)\{(.*?)\}@ = ([^;]*);")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_DECLARATION = re.compile(rf"^\s*(?:const )?(?:{'|'.join(REGISTERS)}) (\w+)( = |;)")
_ASSIGNED = re.compile(r"\b(tmp\w*) [-+*/|&]?= ")

# dtype -> the words that hold registers a (, b, c, d), lowest first.
_PACK = {
    torch.float32: ("floatBitsToUint({a})",),
    torch.int32: ("uint({a})",),
    torch.uint32: ("{a}",),
    torch.float16: ("vk_f32_to_f16_pair({a}, {b})",),
    torch.bfloat16: ("vk_f32_to_bf16_pair({a}, {b})",),
    torch.int16: ("(uint({a}) & 0xffffu | uint({b}) << 16)",),
    torch.uint16: ("(uint({a}) & 0xffffu | uint({b}) << 16)",),
    torch.int8: ("(uint({a}) & 0xffu | (uint({b}) & 0xffu) << 8 | (uint({c}) & 0xffu) << 16 | uint({d}) << 24)",),
    torch.uint8: ("(uint({a}) & 0xffu | (uint({b}) & 0xffu) << 8 | (uint({c}) & 0xffu) << 16 | uint({d}) << 24)",),
    torch.bool: ("(uint({a}) | uint({b}) << 8 | uint({c}) << 16 | uint({d}) << 24)",),
    torch.int64: ("uint({a})", "uint(uint64_t({a}) >> 32)"),
    torch.uint64: ("uint({a})", "uint({a} >> 32)"),
    torch.float64: ("unpackDouble2x32({a}).x", "unpackDouble2x32({a}).y"),
}

# dtype -> the same of as many registers as fill four words, where that is quicker than a word at a time.
_PACK_FOUR = {torch.bfloat16: "vk_f32_to_bf16_words({})"}


@dataclass(frozen=True)
class Access:
    """A load or store of element ``index`` of argument ``var``; ``text``: that index in GLSL.

    ``aligned``: whether the buffer begins at a multiple of WIDEST bytes.
    """

    number: int
    var: str
    dtype: torch.dtype
    index: sympy.Expr
    text: str
    aligned: bool
    store: bool

    def mark(self, lvalue: str) -> str:
        """``lvalue``, the scalar access, marked as this one."""
        return f"@{self.number}{{{lvalue}}}@"


def scalar(lines: Iterable[str], accesses: Sequence[Access]) -> list[str]:
    """``lines`` with every access one of a single element."""

    def store(match: re.Match[str]) -> str:
        access = accesses[int(match[1])]
        return f"{match[2]} = {glsl_type(access.dtype).store.format(match[3])};"

    def load(match: re.Match[str]) -> str:
        return glsl_type(accesses[int(match[1])].dtype).load.format(match[2])

    return [LOAD.sub(load, _STORE.sub(store, line)) for line in lines]


@dataclass(frozen=True)
class Dimension:
    """What neighbours differ in: ``index``, the GLSL variable (of type ``type``) that counts them along ``tree``, a
    range tree. ``nodes``: the kernel's range tree entries by symbol."""

    index: str
    type: str
    tree: Any
    nodes: Any

    def kind(self, entry: Any, width: int) -> str:
        """How ``entry``'s value goes over ``width`` neighbours: "same", "next" (one more each), or "any"."""
        if entry.root is not self.tree:
            return "same"
        whole = entry.divisor == 1 and entry.length == self.tree.numel
        if entry.divisor == 1 and (whole or divides(width, entry.length)):
            return "next"
        return "same" if divides(width, entry.divisor) else "any"

    def moves(self, index: sympy.Expr) -> bool:
        """Whether two neighbours, at least, may differ in ``index``. One that was loaded (a symbol of no range tree) is
        not looked into."""
        return any(s in self.nodes and self.kind(self.nodes[s], 2) != "same" for s in index.free_symbols)

    def apart(self, index: sympy.Expr, width: int) -> int:
        """By how much the ``index`` of each neighbour is more than the one before: the same for all, that of the first
        being a multiple of so many times ``width``; 0 where that is not known."""
        leads = []
        for symbol in index.free_symbols:
            kind = self.kind(self.nodes[symbol], width) if symbol in self.nodes else "same"
            if kind == "any":
                return 0
            if kind == "next":
                leads.append(symbol)
        if len(leads) != 1:
            return 0
        (lead,) = leads
        index = sympy.expand(index)
        factor = index.coeff(lead)
        rest = sympy.expand(index - factor * lead)
        if not factor.is_Integer or factor < 1 or lead in rest.free_symbols:
            return 0
        whole = all(_multiple(term, width * int(factor)) for term in sympy.Add.make_args(rest))
        return int(factor) if whole else 0


def _multiple(term: sympy.Expr, width: int) -> bool:
    factor = term.as_coeff_Mul()[0]
    return bool(factor.is_Integer and factor % width == 0) or divides(width, term)


@dataclass
class Wide:
    """A body for ``width`` neighbours: ``before`` and ``after`` once, ``body`` for each; all see the index of the
    first, ``body`` that of its own. ``indexing``: the lines of ``before`` that declare indices. ``wide`` and
    ``single``: bytes of an element that go by wide accesses, and not."""

    width: int
    indexing: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    wide: int = 0
    single: int = 0


def _chunks(words: int) -> list[tuple[int, int]]:
    """(first word, words) of the accesses that ``words`` words take, which begin at a multiple of so many words."""
    widest = min(WIDEST // 4, words & -words)
    return [(first, widest) for first in range(0, words, widest)]


def _address(access: Access, first: int, words: int) -> str:
    kind = {1: "uint", 2: "uvec2", 4: "uvec4"}[words]
    base = f"uint64_t({access.var}) + uint64_t({access.text}) * {access.dtype.itemsize}ul"
    return f"Buffer_{kind}({base}{f' + {4 * first}ul' if first else ''}).d[0]"


def word_count(access: Access, width: int) -> int:
    """32-bit words of ``width`` elements; 0 where they fill none."""
    nbytes = width * access.dtype.itemsize
    return nbytes // 4 if nbytes % 4 == 0 else 0


def unpacked(access: Access, apart: int = 1) -> str:
    """The register of neighbour v of a wide load of elements ``apart`` from each other."""
    return element(access.dtype, f"wide{access.number}", f"({apart} * v)" if apart > 1 else "v")


def wide_load(access: Access, width: int) -> list[str]:
    """Declarations of the words of ``width`` neighbours, the index being that of the first."""
    name, words = f"wide{access.number}", word_count(access, width)
    lines, parts = [], []
    for i, (first, count) in enumerate(_chunks(words)):
        kind = {1: "uint", 2: "uvec2", 4: "uvec4"}[count]
        lines.append(f"const {kind} {name}_{i} = {_address(access, first, count)};")
        parts += [f"{name}_{i}"] if count == 1 else [f"{name}_{i}.{c}" for c in "xyzw"[:count]]
    return [*lines, f"const uint {name}[{words}] = uint[]({', '.join(parts)});"]


def _packed(access: Access, width: int) -> list[str]:
    """What the body has kept for a wide store, by access."""
    name, pack = f"kept{access.number}", _PACK[access.dtype]
    each = max(1, 4 // access.dtype.itemsize)
    registers = [f"{name}[{i}]" for i in range(width)]
    four = _PACK_FOUR.get(access.dtype)
    if four is not None and _chunks(word_count(access, width))[0][1] == 4:
        return [four.format(", ".join(registers[i : i + 4 * each])) for i in range(0, width, 4 * each)]
    words = []
    for first in range(0, width, each):
        words += [word.format(**dict(zip("abcd", registers[first : first + each], strict=False))) for word in pack]
    return _vectors(words)


def _copied(word: str, count: int) -> list[str]:
    """The words of neighbours of which each is picked from ``word`` (`picked_from`), by access."""
    return _vectors([re.sub(r"\bv >> \d", str(i), word) for i in range(count)])


def _vectors(words: Sequence[str]) -> list[str]:
    """``words`` as one value an access."""
    found = []
    for first, count in _chunks(len(words)):
        kind = {1: "", 2: "uvec2", 4: "uvec4"}[count]
        found.append(f"{kind}({', '.join(words[first : first + count])})")
    return found


def _store(access: Access, values: Sequence[str], width: int) -> list[str]:
    chunks = _chunks(word_count(access, width))
    return [f"{_address(access, first, count)} = {v};" for (first, count), v in zip(chunks, values, strict=True)]


def statements(lines: Sequence[str]) -> list[list[str]]:
    """``lines`` by statement: one line, or those of a block in braces with the declaration that it assigns."""
    found: list[list[str]] = []
    depth, opened = 0, False
    for line in lines:
        joins = depth > 0 or opened
        depth += line.count("{") - line.count("}")
        opened = (match := _DECLARATION.match(line)) is not None and match[2] == ";"
        if joins:
            found[-1].append(line)
        else:
            found.append([line])
    return found


def vectorize(
    lines: Sequence[str],
    width: int,
    dimension: Dimension,
    accesses: Sequence[Access],
    different: Iterable[str] = (),
) -> Wide:
    """``lines``, the marked body of one element (its index declarations among them), for ``width`` neighbours.

    ``different``: values from elsewhere that each has its own of.
    """
    changing: set[str] = set(different)
    while True:
        writer = _Writer(width, dimension, accesses, changing)
        for statement in statements(lines):
            writer.add(statement)
        if writer.changed <= changing:
            return writer.result
        changing |= writer.changed


class _Writer:
    """Sorts statements into the parts of ``result``.

    ``changing``: values that statements which are not the same for all neighbours assign again; ``changed``: those
    found to be.
    """

    def __init__(self, width: int, dimension: Dimension, accesses: Sequence[Access], changing: set[str]) -> None:
        self.result = Wide(width)
        self.changed: set[str] = set()
        self._width, self._dimension, self._accesses = width, dimension, accesses
        self._moves = {dimension.index: "next"}
        self._moves |= {entry.name: dimension.kind(entry, width) for entry in dimension.nodes.values()}
        self._varying = {name for name, kind in self._moves.items() if kind != "same"} | {"k", "v"} | changing
        self._once: set[str] = set()  # values of ``before``
        self._seen: set[int] = set()
        self._texts: dict[str, str] = {}  # values of ``body`` that one line declares
        self.result.body.append(self._next(dimension.index))

    def _next(self, name: str) -> str:
        # What is on the right is the outer variable: the new one begins after its own declaration.
        return f"const {self._dimension.type} {name} = {name} + v;"

    def _moving(self, lines: Iterable[str]) -> bool:
        return any(name in self._varying for line in lines for name in _NAME.findall(line))

    def _apart(self, access: Access, text: str) -> int:
        """How far apart the neighbours of a wide access are; 0 for one that is none."""
        if not access.aligned or not word_count(access, self._width):
            return 0
        if any(name in self._varying for name in _NAME.findall(text) if name not in self._moves):
            return 0
        apart = self._dimension.apart(access.index, self._width)
        if apart <= 1:
            return apart
        # Each part of a load has an element that is there: it lies in memory that is.
        _, part = _chunks(word_count(access, self._width * apart))[0]
        near = apart * access.dtype.itemsize <= min(WIDEST // 2, 4 * part)
        return apart if near and not access.store else 0

    def _load(self, match: re.Match[str]) -> str:
        access, result = self._accesses[int(match[1])], self.result
        first = access.number not in self._seen
        self._seen.add(access.number)
        apart = self._apart(access, match[2])
        if apart:
            if first:
                result.before += wide_load(access, self._width * apart)
                result.wide += access.dtype.itemsize
            return unpacked(access, apart)
        if first and self._moving([match[2]]):
            result.single += access.dtype.itemsize
        return glsl_type(access.dtype).load.format(match[2])

    def _store(self, match: re.Match[str]) -> str:
        access, result = self._accesses[int(match[1])], self.result
        if self._apart(access, match[2]):
            result.wide += access.dtype.itemsize
            word = picked_from(access.dtype, self._texts.get(match[3], ""))
            if word is not None:
                # What is copied stays as it is: a bfloat16 would take several instructions to become itself again.
                copied = _copied(word, word_count(access, self._width))
                result.after += _store(access, copied, self._width)
                return ""
            register = glsl_type(access.dtype).register
            result.before.append(f"{register} kept{access.number}[{self._width}];")
            result.after += _store(access, _packed(access, self._width), self._width)
            return f"kept{access.number}[v] = {match[3]};"
        result.single += access.dtype.itemsize
        return f"{match[2]} = {glsl_type(access.dtype).store.format(match[3])};"

    def add(self, statement: list[str]) -> None:
        """Put ``statement`` where it belongs."""
        result, first = self.result, statement[0]
        declared = _DECLARATION.match(first)
        if declared is not None and declared[1] in self._moves:
            result.before.append(first)
            result.indexing.append(first)
            kind = self._moves[declared[1]]
            if kind != "same":
                result.body.append(self._next(declared[1]) if kind == "next" else first)
            return
        if len(statement) == 1 and not first.startswith("if ("):
            statement = [LOAD.sub(self._load, _STORE.sub(self._store, first))]
            if not statement[0]:
                return
        else:
            inside = {int(match[1]) for line in statement for match in LOAD.finditer(line)}
            if self._moving(statement):
                result.single += sum(self._accesses[number].dtype.itemsize for number in inside)
            statement = scalar(statement, self._accesses)
        assigned = {name for line in statement for name in _ASSIGNED.findall(line)}
        declares = declared is not None and declared[1].startswith("tmp") and declared[1] not in self._varying
        repeats = len(statement) == 1 and bool(assigned) and assigned <= self._once
        if (declares or repeats) and not self._moving(statement):
            result.before += statement
            self._once |= assigned | ({declared[1]} if declared is not None else set())
            return
        self._note(statement, declared, assigned)
        self.changed |= assigned & self._once
        self._varying |= assigned | ({declared[1]} if declared is not None else set())
        result.body += statement

    def _note(self, statement: list[str], declared: re.Match[str] | None, assigned: set[str]) -> None:
        """Remember what a value of the body is, as long as it is the same."""
        for name in assigned:
            self._texts.pop(name, None)
        if len(statement) == 1 and declared is not None and declared[2] == " = ":
            text = statement[0][declared.end() :].removesuffix(";")
            self._texts[declared[1]] = self._texts.get(text, text)


def best(
    widths: Iterable[int], vectorized: Callable[[int], Sequence[Wide]], fewest: float = 0.5
) -> tuple[int, Sequence[Wide]] | None:
    """The first of ``widths`` with which ``fewest`` of the bytes or more go by wide accesses, and the bodies for it."""
    for width in widths:
        bodies = vectorized(width)
        wide, single = sum(b.wide for b in bodies), sum(b.single for b in bodies)
        if wide and wide >= fewest * (wide + single):
            return width, bodies
    return None
