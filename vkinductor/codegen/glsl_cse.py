"""Common subexpressions of a kernel, with the bounds of integers that more than one use has shown."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codegen.common import CSE, CSEVariable, IndentedBuffer
from torch._inductor.virtualized import OpsValue, V
from torch.utils._sympy.value_ranges import ValueRanges

from .types import glsl_type


class GlslVariable(CSEVariable):
    """A register. ``text``: the expression that it holds, "" where that is none of an operator."""

    text: str = ""


class GlslCSE(CSE):
    """Common subexpressions as typed GLSL declarations: ``float tmp3 = ...;``."""

    def generate(
        self,
        buffer: IndentedBuffer,
        expr: Any,
        *,
        bounds: ValueRanges[Any] | None = None,
        write: bool = True,
        assignment: bool = True,
        dtype: torch.dtype | None = None,
        shape: Any = None,
    ) -> CSEVariable:
        """The variable that holds ``expr`` (declared in ``buffer`` unless it already exists)."""
        bounds = ValueRanges.unknown() if bounds is None else bounds
        if isinstance(expr, OpsValue):
            expr = expr.value
        if isinstance(expr, CSEVariable):
            expr.bounds = _tightened(expr.bounds, bounds)
            expr.use_count += 1
            return expr
        assert dtype is not None, f"value without a dtype: {expr}"
        register = glsl_type(dtype).register
        key = f"{register} {expr}"
        var = self.try_get(key)
        if var is not None and V.kernel.visible(var):
            var.bounds = _tightened(var.bounds, bounds)
            var.use_count += 1
            return var
        var = self.newvar(bounds, dtype, ())
        self.put(key, var)
        if isinstance(var, GlslVariable):
            var.text = str(expr)
        if write:
            buffer.writeline(f"{register} {var} = {expr};" if assignment else f"{expr};")
        return var


def _tightened(known: ValueRanges[Any], bounds: ValueRanges[Any]) -> ValueRanges[Any]:
    """Both ranges of one value together.

    Inductor's analysis and ours may disagree on the kind: an index as a float is a range of integers to one of them.
    Ranges of two kinds cannot be intersected, and the first is as true as before.
    """
    if known is bounds or known == bounds:  # mostly; to intersect them takes many times as long
        return known
    kinds = {(r.is_bool, r.is_int) for r in (known, bounds) if r != ValueRanges.unknown()}
    return known.tighten(bounds) if len(kinds) < 2 else known
