"""Reductions over columns, several neighbouring columns an invocation: wide loads along them.

What a kernel keeps for its column (accumulators, values of the row) becomes an array over the columns, and each part of
the kernel a loop over them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .sections import Section
from .types import REGISTERS
from .vectorize import Access, Dimension, vectorize

# A kept value, as that of column v.
_OF_V = r"\1[v]"
_KEPT = re.compile(rf"^({'|'.join(REGISTERS)}) (\w+)(?: = (.*))?;$")


def widen(
    sections: Sequence[Section],
    hoisted: Sequence[str],
    indexing: Sequence[str],
    width: int,
    across: Dimension,
    accesses: Sequence[Access],
) -> tuple[list[Section], list[str]] | None:
    """``sections`` and ``hoisted``, the marked text of one column, for ``width`` neighbours along ``across``; None where
    no access would be wide, or the row is walked more than once. ``indexing``: declarations on the first column."""
    if sum(bool(s.loop and s.body) for s in sections) != 1 or any("[" in line for line in hoisted):
        return None
    kept = {m[2]: m[1] for line in hoisted if (m := _KEPT.match(line))}
    for section in sections:
        for line in (*section.before, *section.after):
            if (m := _KEPT.match(line)) is not None:
                kept[m[2]] = m[1]
    steps = {m[2]: m[1] for s in sections for line in s.begin if (m := _KEPT.match(line))}
    arrays = re.compile(rf"\b({'|'.join(sorted({*kept, *steps}))})\b") if kept or steps else None

    def each(lines: Iterable[str]) -> list[str]:
        lines = [*lines]
        if not lines:
            return []
        text = [f"    {_assigned(line)}" for line in lines]
        loop = f"[[unroll]] for (int v = 0; v < {width}; ++v) {{"
        return [loop, *(arrays.sub(_OF_V, line) if arrays else line for line in text), "}"]

    def _assigned(line: str) -> str:
        match = _KEPT.match(line)
        return line if match is None or match[2] not in kept.keys() | steps.keys() else f"{match[2]} = {match[3]};"

    found, bytes_wide = [], 0
    for section in sections:
        parts = {}
        for name in ("body", "row"):
            wide = vectorize([*indexing, *getattr(section, name)], width, across, accesses, {*kept, *steps})
            inside = [f"    {arrays.sub(_OF_V, line) if arrays else line}" for line in wide.body]
            loop = f"[[unroll]] for (int v = 0; v < {width}; ++v) {{"
            parts[name] = [*wide.before, loop, *inside, "}", *wide.after] if getattr(section, name) else []
            bytes_wide += wide.wide if section.loop and name == "body" else 0
        begin = [f"{register} {name}[{width}];" for name, register in steps.items()] if section.begin else []
        found.append(
            Section(
                section.loop, each(section.before), parts["body"], each(section.after), parts["row"],
                [*begin, *each(section.begin)], each(section.end),
            )
        )  # fmt: skip
    return (found, [f"{register} {name}[{width}];" for name, register in kept.items()]) if bytes_wide else None
