"""Cuts the function library (`lib/*.glsl`) into functions and hands out exactly those that a kernel needs.

A library file is a run of blocks: comments, `const` tables, and functions at column 0 whose closing brace
stands alone at column 0. Every name a block defines starts with `vk_` (functions) or `VK_` (constants);
overloads of one name belong together. A block needs those whose names it mentions, found by reading its text:
there is no list to keep in step.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"\b[vV][kK]_\w+\b")
_COMMENT = re.compile(r"//[^\n]*")
# `float vk_exp(float x) {`, `const float VK_LN2 = ...`, `const uint VK_TABLE[4] = ...`, `#define VK_X ...`
_DEFINITION = re.compile(
    r"^(?:#define\s+|(?:const\s+)?(?:precise\s+)?\w+(?:\[\d*\])?\s+)(v[kK]_\w+|V[kK]_\w+)\s*(?:[\[(=]|\s)"
)


@dataclass(frozen=True)
class _Block:
    name: str
    text: str
    needs: frozenset[str]


def _blocks(text: str, file: str) -> list[_Block]:
    """The definitions of one file. Raises `ValueError` for text that is none."""
    blocks = []
    lines = _COMMENT.sub("", text).split("\n")
    position = 0
    while position < len(lines):
        line = lines[position].rstrip()
        start = position
        position += 1
        if not line:
            continue
        match = _DEFINITION.match(line)
        if match is None:
            raise ValueError(f"{file}:{start + 1}: not the start of a definition: {line!r}")
        while not _ends(lines[start:position]):
            if position == len(lines):
                raise ValueError(f"{file}:{start + 1}: {match[1]} has no end")
            position += 1
        body = "\n".join(kept for one in lines[start:position] if (kept := one.rstrip()))
        blocks.append(_Block(match[1], body, frozenset(_NAME.findall(body)) - {match[1]}))
    return blocks


def _ends(lines: list[str]) -> bool:
    last = lines[-1].rstrip()
    if lines[0].startswith("#define"):
        return not last.endswith("\\")
    one_line_function = len(lines) == 1 and last.endswith("}")
    return last == "}" or (last.endswith(";") and not last.startswith(" ")) or last == ");" or one_line_function


@functools.cache
def _all_blocks() -> dict[str, tuple[int, str, frozenset[str]]]:
    """name -> (place in definition order, text of all its overloads, names it needs)."""
    found: dict[str, tuple[int, str, frozenset[str]]] = {}
    folder = importlib.resources.files("vkinductor.templates") / "lib"
    for file in sorted((f for f in folder.iterdir() if f.name.endswith(".glsl")), key=lambda f: f.name):
        for block in _blocks(file.read_text(encoding="utf-8"), file.name):
            place, text, needs = found.get(block.name, (len(found), "", frozenset()))
            found[block.name] = (place, f"{text}\n{block.text}" if text else block.text, needs | block.needs)
    return found


def library_functions() -> frozenset[str]:
    """The names of all functions and constants of the library."""
    return frozenset(_all_blocks())


def library(names: Iterable[str]) -> str:
    """The GLSL that defines `names` and all that they call: each once, callees before callers; "" for no
    names.

    The same set of names gives the same text, in whatever order they come. Raises `KeyError` that names a
    function the library does not have.
    """
    blocks = _all_blocks()
    ordered: dict[str, None] = {}

    def visit(name: str, caller: str) -> None:
        if name in ordered:
            return
        if name not in blocks:
            by = f" ({caller} calls it)" if caller else ""
            raise KeyError(f"{name}: no such function in the GLSL library{by}")
        for needed in sorted(blocks[name][2], key=lambda n: blocks[n][0] if n in blocks else -1):
            visit(needed, name)
        ordered[name] = None

    for name in sorted(set(names)):
        visit(name, "")
    return "".join(f"{blocks[name][1]}\n" for name in ordered)
