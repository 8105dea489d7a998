"""What a kernel that scheduling generates computes, whatever the sizes: the name under which its results are kept.

Two kernels are alike when their loop bodies have the same operators, constants, dtypes and accesses. Constants that are
one of the sizes (a mean's) are that; numbers in indices count with the power of two that divides them, up to sixteen:
it decides how wide accesses may be.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from math import gcd
from typing import Any

from torch._inductor.virtualized import V

_NUMBER = re.compile(r"\b\d+\b")
_SIZE = re.compile(r"\b[sup]s?\d+\b")
_WIDEST = 16


def structure(nodes: Iterable[Any]) -> str:
    """A hash of what scheduler ``nodes``, those of one kernel in their order, compute."""
    nodes = list(nodes)
    names: dict[str, str] = {}
    sizes = {float(n) for node in nodes for n in (*node.group[1], *node._body.var_ranges.values()) if n.is_Integer}
    lines = [line for node in nodes for line in _lines(node._body, names, sizes - {0.0, 1.0})]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _lines(body: Any, names: dict[str, str], sizes: set[float]) -> Iterable[str]:
    """The statements of a loop body; ``names``: those of the buffers that were met, with their dtypes."""
    ranges = [len(group) for group in body.sizes]
    yield f"loop {ranges}"
    for block in (body.root_block, *body.subblocks.values()):
        yield "block"
        for node in block.graph.nodes:
            if node.op != "placeholder":
                yield f"{node.name} {node.target} {[_argument(body, value, names, sizes) for value in node.args]}"


def _argument(body: Any, value: Any, names: dict[str, str], sizes: set[float]) -> str:
    if isinstance(value, (tuple, list)):
        return str([_argument(body, part, names, sizes) for part in value])
    if not isinstance(value, str):
        return "size" if isinstance(value, (int, float)) and float(value) in sizes else str(value)
    if value in body.indexing_exprs:
        return _index(str(body.indexing_exprs[value]), body)
    if V.graph.try_get_buffer(value) is not None or value in V.graph.graph_inputs:
        return names.setdefault(value, f"buffer{len(names)} {V.graph.get_dtype(value)}")
    return value


def _index(text: str, body: Any) -> str:
    """An index whose sizes are no numbers and no names of sizes."""
    own = {str(symbol): f"i{k}" for k, symbol in enumerate(body.var_ranges)}

    def named(match: re.Match[str]) -> str:
        return own.get(match[0], "size")

    text = _SIZE.sub(named, text)
    return _NUMBER.sub(lambda match: match[0] if int(match[0]) < 2 else f"n{gcd(int(match[0]), _WIDEST)}", text)
