"""What an epilogue takes an element: whether it pays to fuse it into a template's stores is the template's to say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .op_tables import UNARY_FLOAT

# Instructions, about; what is not here is one. Functions of the library are polynomials.
_FUNCTION = 30
_WEIGHTS = {
    **dict.fromkeys(UNARY_FLOAT, _FUNCTION),
    **dict.fromkeys(("truediv", "sqrt", "rsqrt"), 8),
    **dict.fromkeys(("store", "to_dtype", "constant", "index_expr", "get_index", "output", "placeholder"), 0),
    "pow": 2 * _FUNCTION,
    "load": 3,
}


def operations(nodes: Iterable[Any]) -> int:
    """Instructions an element of scheduler ``nodes``, the template's own among them, which has no body."""
    bodies = [body for node in nodes if (body := getattr(node, "_body", None)) is not None]
    return sum(_WEIGHTS.get(name, 1) * count for body in bodies for name, count in body.op_counts.items())
