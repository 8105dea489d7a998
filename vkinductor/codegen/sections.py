"""A kernel body in sections, and how a value reaches a later section.

A reduction kernel alternates between *loop* sections (once for each element of the row that a lane owns) and
*flat* sections (once a row). Each becomes a scope of its own in GLSL, so a value that a later section reads
has to be declared outside: a scalar for a flat value, an array with one slot an element for a loop value of a
persistent reduction (looped reductions reload instead, see kernel.py). This module finds those values in the
generated text and hoists them; nothing else knows about scopes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from .early_loads import EarlyLoads
from .types import REGISTERS
from .vectorize import Wide

_DECLARATION = re.compile(rf"^(\s*)({'|'.join(REGISTERS)}) (tmp\d+)( = |;)")
# Values inside a mask have other names (tmp_m0) and never leave it.
_NAME = re.compile(r"\btmp\d+\b")


@dataclass
class Section:
    """``before`` and ``after`` run at function scope, ``body`` in the section's own scope, ``row`` once a row
    at the end (a flat scope too). ``begin`` and ``end`` go around the elements of a step. ``wide``: the body for
    several elements at once, instead, and ``early`` which of its loads come before (early_loads.py)."""

    loop: bool
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    row: list[str] = field(default_factory=list)
    begin: list[str] = field(default_factory=list)
    end: list[str] = field(default_factory=list)
    wide: Wide | None = None
    early: EarlyLoads | None = None


def declared(lines: Iterable[str]) -> dict[str, str]:
    """name -> register type of the values that ``lines`` declare."""
    return {m[3]: m[2] for line in lines if (m := _DECLARATION.match(line))}


def _names(lines: Iterable[str]) -> set[str]:
    return {name for line in lines for name in _NAME.findall(line)}


def _hoisted(line: str, names: set[str]) -> str | None:
    match = _DECLARATION.match(line)
    if match is None or match[3] not in names:
        return line
    if match[4] == ";":
        return None
    return line[: match.start(2)] + line[match.start(3) :]


def hoist(sections: list[Section], elements: int) -> list[str]:
    """Rewrite ``sections`` in place so that every value is visible where it is read.

    ``elements`` is the number of row elements a lane keeps (the array length of hoisted loop values; with 1
    they are scalars). Returns the declarations to put at function scope.
    """
    scalars: dict[str, str] = {}
    arrays: dict[str, str] = {}
    for position, section in enumerate(sections):
        others: set[str] = set()
        for other_position, other in enumerate(sections):
            if other_position != position:
                others |= _names([*other.before, *other.body, *other.after, *other.row])
        outside = others | _names(section.before) | _names(section.after) | _names(section.row)
        found = {name: kind for name, kind in declared(section.body).items() if name in outside}
        (arrays if section.loop and elements > 1 else scalars).update(found)
        scalars.update({name: kind for name, kind in declared(section.row).items() if name in others})
    moved = scalars.keys() | arrays.keys()
    slot = re.compile(rf"\b({'|'.join(sorted(arrays))})\b") if arrays else None
    for section in sections:
        for part in ("body", "row"):
            lines = [kept for line in getattr(section, part) if (kept := _hoisted(line, set(moved))) is not None]
            if slot is not None and part == "body" and section.loop:
                lines = [slot.sub(r"\1[k]", line) for line in lines]
            setattr(section, part, lines)
    return [f"{kind} {name};" for name, kind in scalars.items()] + [
        f"{kind} {name}[{elements}];" for name, kind in arrays.items()
    ]


@dataclass
class Deferred:
    """What is computed once a row, by one invocation each: ``given`` (type and name) by the lanes that reduced the row,
    ``early`` (type, name and GLSL) loaded before, ``body``."""

    given: list[tuple[str, str]]
    early: list[tuple[str, str, str]]
    body: list[str]


def defer(sections: list[Section], hoisted: Iterable[str], written: Iterable[str]) -> Deferred | None:
    """Take the flat sections at the end of ``sections`` away, as what the lanes of a row need not all compute; None,
    and nothing taken, where that needs what is no plain value of the row. ``written``: pointers that the kernel stores
    to."""
    last = max(i for i, section in enumerate(sections) if section.loop)
    flat = sections[last + 1 :]
    lines = [line for section in flat for line in section.body]
    if any((*section.before, *section.after, *section.row) for section in flat):
        return None
    kinds = declared([*hoisted, *(line for s in sections[: last + 1] for line in (*s.before, *s.after, *s.row))])
    set_here = {match[1] for line in lines if (match := re.match(r"\s*(tmp\d+) = ", line)) is not None}
    given = sorted(_names(lines) - declared(lines).keys() - set_here)
    if any(kinds.get(name, "bool") == "bool" for name in given):
        return None
    changing = re.compile(rf"\b({'|'.join(written) or 'none'})\b")
    if any(changing.search(line.split(" = ", 1)[-1]) for line in lines):
        return None  # another invocation has stored it
    early, body = _loaded_before(lines)
    del sections[last + 1 :]
    return Deferred([(kinds[name], name) for name in given], early, body)


def _loaded_before(lines: list[str]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Loads among ``lines`` that wait for nothing, and the other lines."""
    found: list[tuple[str, str, str]] = []
    kept: list[str] = []
    depth = 0
    for line in lines:
        match = _DECLARATION.match(line)
        value = line[match.end() :].rstrip(";") if match is not None else ""
        waits = depth or ".d[" not in value or _NAME.search(value)
        if match is None or waits:
            kept.append(line)
        else:
            found.append((match[2], match[3], value))
        depth += line.count("{") - line.count("}")
    return found, kept
