"""Loads of neighbours that a template makes of a float tensor, as wide as is known to be right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .alignment import vector_width
from .vectors import elements, load_type, narrowest


@dataclass(frozen=True)
class Loads:
    """Loads of ``width`` neighbours of a float tensor: their GLSL type and how elements are had of one."""

    width: int
    type: str
    elements: Callable[[str], list[str]]


def loads(operand: Any, most: int = 8) -> Loads:
    """The widest loads of at most ``most`` elements along the last dimension of ``operand``."""
    dtype = operand.get_dtype()
    width = narrowest(dtype, min(most, vector_width(operand, len(operand.get_size()) - 1)))
    return Loads(width, load_type(dtype, width), lambda name: elements(dtype, width, name))
