"""Sorts inside row kernels: Inductor's ``ops.sort`` of rows that one workgroup holds (longer ones: sorting.py).

A sort needs its whole row at one place, so it ends the loop over the row: what comes before is computed for every
element, the row is sorted through shared memory (row_sort.glsl.jinja), and another loop goes on with the sorted row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.ir import TensorBox
from torch._inductor.utils import upcast_compute_type
from torch._inductor.virtualized import ops

from vkinductor.templates import render

from . import heuristics
from .operands import as_dtype, round_to_half
from .types import convert, glsl_type


@dataclass(frozen=True)
class RowSort:
    """What the sorts of a kernel share. A row has ``block`` elements of each shared array, a power of two."""

    register: str
    block: int

    @property
    def key(self) -> str:
        """GLSL type that values are compared as."""
        return key_type(self.register)

    def functions(self) -> str:
        """The GLSL functions ``sort_key`` and ``sort_less``."""
        return render("sort_key.glsl.jinja", register=self.register, key=self.key, descending=False)

    def shared(self, rows: int) -> list[tuple[str, str, int]]:
        """Shared arrays of a workgroup of ``rows`` rows: (element type, name, length)."""
        size = self.block * rows
        return [(self.key, "sort_keys", size), ("int", "sort_places", size), (self.register, "sort_values", size)]


def key_type(register: str) -> str:
    """The GLSL type that values in ``register`` are compared as (sort_key.glsl.jinja)."""
    return "ivec2" if register in ("double", "int64_t", "uint64_t") else "int"


def shared_dtype(dtype: torch.dtype) -> torch.dtype:
    """What values of ``dtype`` are in shared memory: bool has no defined layout there on every driver."""
    return torch.int32 if dtype == torch.bool else upcast_compute_type(dtype)


def lower(x: TensorBox, dim: int, descending: bool) -> tuple[Any, Any] | None:
    """(values, int64 indices) of a stable sort along ``dim`` as IR that fuses with what is before and after; None where
    the length varies or is more than a row kernel takes."""
    size = list(x.get_size())
    length = size[dim]
    if not isinstance(length, (int, sympy.Integer)) or length > heuristics.longest_row_sort():
        return None
    values, places = ir.Sort.create(
        device=x.get_device_or_error(),
        dtypes=(x.get_dtype(), torch.int32),
        inner_fns=(x.make_loader(), lambda index: ops.index_expr(index[dim], torch.int32)),
        size=size,
        axis=dim,
        stable=True,
        descending=descending,
    )
    return None if places is None else (values, lowering.to_dtype(places, torch.int64))


def sort(kernel: Any, dtype: torch.dtype, value: Any, descending: bool) -> tuple[Any, Any]:
    """Emit a stable sort of ``value`` over the row into ``kernel``: (sorted values, int32 positions before).

    NaN are the largest, as in torch.
    """
    kept = shared_dtype(dtype)
    text = as_dtype(value, kept)
    if dtype in (torch.float16, torch.bfloat16):
        # What is equal in half precision keeps its order, whatever it was before rounding.
        text = round_to_half(text, dtype)
    value = kernel.cse.generate(kernel.compute, text, dtype=kept, shape=())
    cached = [f"sort {value} {descending} {part}" for part in ("values", "places")]
    results = [kernel.cse.try_get(key) for key in cached]
    if all(r is not None for r in results):
        return results[0], results[1]
    layout = kernel.layout
    if kernel.row_sort is None:
        kernel.row_sort = RowSort(glsl_type(kept).register, layout.block)
        kernel.accumulators.writeline(f"const int sort_base = local / {layout.lanes} * {layout.block};")
    elif layout.lanes > 1:
        kernel.cut_row(["barrier();"])  # other lanes still read what was sorted before
    assert kernel.row_sort.register == glsl_type(kept).register
    sign = "~" if descending else ""
    kernel.compute.writeline(f"sort_keys[sort_base + int(r0_index)] = {sign}sort_key({value});")
    kernel.compute.writeline(f"sort_values[sort_base + int(r0_index)] = {value};")
    steps = render("row_sort.glsl.jinja", key=kernel.row_sort.key, layout=layout)
    kernel.cut_row([line for line in steps.splitlines() if line.strip()])
    register = upcast_compute_type(dtype)
    place = kernel.cse.newvar(dtype=torch.int32, shape=())
    sorted_value = kernel.cse.newvar(dtype=register, shape=())
    kernel.compute.writeline(f"int {place} = sort_places[sort_base + int(r0_index)];")
    text = convert(f"sort_values[sort_base + {place}]", kept, register)
    kernel.compute.writeline(f"{glsl_type(register).register} {sorted_value} = {text};")
    for key, result in zip(cached, (sorted_value, place), strict=True):
        kernel.cse.put(key, result)
    return sorted_value, place


def fusable(nodes: Sequence[Any]) -> bool:
    """Whether one kernel can hold the scheduler's ``nodes``: its sorts share arrays of one type, and it scans no row,
    which is done in chunks."""
    registers = set()
    scans = False
    for node in nodes:
        data = getattr(getattr(node, "node", None), "data", None)
        scans = scans or isinstance(data, ir.Scan)
        if isinstance(data, ir.Sort):
            registers.add(glsl_type(data.dtypes[0]).register)
    return len(registers) <= (0 if scans else 1)
