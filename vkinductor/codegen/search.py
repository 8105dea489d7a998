"""Binary search of sorted boundaries inside any kernel: Inductor's ``ops.bucketize``."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.utils import upcast_compute_type
from torch._inductor.virtualized import OpsValue, V

from .operands import as_dtype, dtype_of, use
from .types import convert, glsl_type, is_float


def _less(a: str, b: str, dtype: torch.dtype, or_equal: bool) -> str:
    """GLSL of a < b (or a <= b) on registers of ``dtype``."""
    symbol = "<=" if or_equal else "<"
    if dtype != torch.int64:
        return f"({a} {symbol} {b})"
    # In halves: Mesa 22.3's lavapipe gets comparisons of int64 wrong where loads depend on them.
    return f"(int({a} >> 32) < int({b} >> 32) || (int({a} >> 32) == int({b} >> 32) && uint({a}) {symbol} uint({b})))"


def bucketize(
    kernel: Any,
    values: Any,
    boundaries: tuple[str, Any, Any, Any],
    first: Any,
    dtype: torch.dtype,
    right: bool,
    sorter: tuple[str, Any] | None,
    sorter_first: Any,
) -> CSEVariable:
    """The number of boundaries below ``values`` (``right``: or equal), as ``dtype``; NaN is above all.

    ``boundaries``: (buffer, how many, elements of the buffer, stride); ``first``: where they begin in it. ``sorter``:
    (buffer, stride) of the positions that sort them, from ``sorter_first``.
    """
    index = kernel.get_index_dtype_as_torch_dtype()

    def element(name: str, start: Any, stride: Any, at: str) -> str:
        start = start.value if isinstance(start, OpsValue) else start
        start = kernel.narrow.get(start, start) if isinstance(start, CSEVariable) else start
        var, entry = kernel.args.input(name), glsl_type(V.graph.get_dtype(name))
        text = f"{as_dtype(start, index)} + ({at}) * {kernel.index_to_str(stride)}"
        if kernel.index_dtype == "int":
            return entry.load.format(f"{var}.d[{text}]")
        return entry.load.format(f"{entry.buffer}(uint64_t({var}) + uint64_t({text}) * {entry.nbytes}ul).d[0]")

    value_dtype = dtype_of(values)
    bound_dtype = upcast_compute_type(V.graph.get_dtype(boundaries[0]))
    common = torch.promote_types(value_dtype, bound_dtype)
    value, name = as_dtype(values, common), kernel.index_dtype
    middle = "middle"
    if sorter is not None:
        middle = f"{name}({element(sorter[0], sorter_first, sorter[1], 'middle')})"
    bound = element(boundaries[0], first, boundaries[3], middle)
    nan = f"{use('vk_isnan', common)}(sought) || {use('vk_isnan', common)}(bound) || " if is_float(common) else ""
    register = glsl_type(common).register
    # Text that says all of it, so that the same search is made once.
    key = f"search {value} {bound} {boundaries[1]} {right}"
    found: CSEVariable | None = kernel.cse.try_get(key)
    if found is None or not kernel.visible(found):
        found = kernel.cse.newvar(dtype=index, shape=())
        kernel.cse.put(key, found)
        above = _less("bound", "sought", common, or_equal=right)
        kernel.compute.writelines(
            [
                f"{name} {found} = 0;",
                "{",
                f"    const {register} sought = {value};",
                f"    {name} high = {kernel.index_to_str(boundaries[1])};",
                f"    while ({found} < high) {{",
                f"        const {name} middle = {found} + (high - {found}) / 2;",
                f"        const {register} bound = {convert(bound, bound_dtype, common)};",
                f"        const bool above = {nan}{above};",
                f"        {found} = above ? middle + 1 : {found};",
                "        high = above ? high : middle;",
                "    }",
                "}",
            ]
        )
    if index == dtype:
        return found
    result: CSEVariable = kernel.cse.generate(kernel.compute, as_dtype(found, dtype), dtype=dtype, shape=())
    if index == torch.int32:
        kernel.narrow[result] = found
    return result
