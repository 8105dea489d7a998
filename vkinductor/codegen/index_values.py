"""Index expressions used as values: `torch.arange(n) ** 2` must not overflow because the kernel's index does not.

An address fits the kernel's index type, which is why that type was chosen; a value computed from the same
variables need not. This module decides when 32 bits are enough and prints the others in 64. Floating-point
expressions of sizes come here as well.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from .compat import variable
from .printer import GlslPrinter
from .types import glsl_type, is_float

_LOWEST, _HIGHEST = -(1 << 31), (1 << 31) - 1


def is_real(expr: sympy.Expr, dtype: torch.dtype) -> bool:
    """Whether ``expr``, used as a value of ``dtype``, is computed in floating point."""
    return is_float(dtype) and _real_valued(expr)


def _real_valued(expr: sympy.Expr) -> bool:
    # sympy takes 1.0 * n for an integer.
    if isinstance(expr, (sympy.Add, sympy.Mul)):
        return any(_real_valued(arg) for arg in expr.args)
    return bool(expr.is_Float) or expr.is_integer is not True


def integral(expr: sympy.Expr) -> sympy.Expr:
    """``expr`` without floats that are whole: a size that was a float on the way (1.0 * s0) is an integer again."""
    return expr.xreplace({f: sympy.Integer(int(f)) for f in expr.atoms(sympy.Float) if float(f).is_integer()})


class WidePrinter(GlslPrinter):
    """Prints in int64_t over variables that are declared as int; sizes come from the argument block at full width."""

    def __init__(self, arguments: frozenset[str]) -> None:
        super().__init__("int64_t")
        self.arguments = arguments

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return f"int64_t(ARG.{expr.name})" if expr.name in self.arguments else f"int64_t({expr.name})"


def fits_int32(kernel: Any, expr: sympy.Expr) -> bool:
    """Whether ``expr`` over the kernel's iteration variables stays within int32, in every step of its evaluation."""
    ranges = {symbol: _range(kernel, symbol) for symbol in expr.free_symbols}
    # A sum can be in range while a term of it is not.
    parts = [part for part in sympy.preorder_traversal(expr) if getattr(part, "is_integer", False)]
    return all(_within(bound_sympy(part, ranges)) for part in parts)


def wide(kernel: Any, expr: sympy.Expr) -> str:
    """GLSL of ``expr`` (already prepared for indexing) as an int64_t."""
    renamed = kernel.rename_indexing(integral(expr))
    arguments = frozenset(str(name) for name in kernel.args.sizevars.values())
    return f"int64_t({WidePrinter(arguments).doprint(renamed)})"


def real(kernel: Any, expr: sympy.Expr, dtype: torch.dtype) -> str:
    """GLSL of a floating-point ``expr`` in the register of ``dtype``.

    One made of sizes alone is the same for every element: the host computes it, in double as Python would.
    """
    own = [s for s in expr.free_symbols if s in kernel.range_tree_nodes or variable(kernel, s.name) is not None]
    if expr.free_symbols and not own:
        return str(kernel.real_argument(expr, dtype))
    prepared = kernel.rename_indexing(kernel.prepare_indexing(expr))
    register = glsl_type(dtype).register
    return f"{register}({GlslPrinter(kernel.index_dtype, register).doprint(prepared)})"


def _range(kernel: Any, symbol: sympy.Symbol) -> ValueRanges[Any]:
    entry = kernel.range_tree_nodes.get(symbol)
    if entry is not None:
        length = entry.length
        known = isinstance(length, (int, sympy.Integer))
        # Iteration variables of an int kernel are ints.
        return ValueRanges(0, max(0, int(length) - 1) if known else _HIGHEST)
    value = variable(kernel, symbol.name)
    if value is not None:
        return value.bounds if _within(value.bounds) else ValueRanges(_LOWEST, _HIGHEST)
    bounds = bound_sympy(symbol)
    return bounds if _within(bounds) else ValueRanges.unknown_int()


def _within(bounds: ValueRanges[Any]) -> bool:
    return bool(bounds.lower >= _LOWEST and bounds.upper <= _HIGHEST)
