"""A kernel whose sections are closed as GLSL: layouts and widths are settled, and a skeleton is filled in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import sympy
from torch._inductor.virtualized import V

from vkinductor.runtime.abi import ArgumentLayout

from . import columns, heuristics, loop_limit, vectorize, widening
from .alignment import divides
from .pending import lines_of
from .precision import half_powers, half_results
from .sections import Section, defer, hoist
from .source import KernelText, assemble
from .types import glsl_type, literal

if TYPE_CHECKING:
    from .kernel import VulkanKernel


def finished(kernel: VulkanKernel) -> KernelText:
    """The kernel as GLSL, and what launching it takes."""
    sections = [section.resolve(kernel) for section in kernel.pending]
    pointers, fields, nbytes = kernel.argument_fields()
    accesses = list(kernel.accesses.values())
    numels = {
        tree.prefix: kernel.numel_text(tree.prefix, tree.numel)
        for tree in kernel.range_trees
        if tree.prefix == "x" or kernel.reduces
    }
    layout = ArgumentLayout(tuple(fields))
    there = [a for a in accesses if (a.var, "ptr") in fields]
    common: dict[str, Any] = {
        "index": kernel.index_dtype,
        "pointers": pointers,
        "xnumel": numels.get("x", "1"),
        "indexing": lines_of(kernel.indexing_code),
        "half_results": half_results(kernel.device_info, there, kernel.atomic_add_found),
        "half_powers": half_powers(kernel.device_info, there, kernel.atomic_add_found),
    }
    text, per_group, specific = (_rows if kernel.reduces else _elements)(kernel, sections, common["indexing"], accesses)
    values = {**common, **specific, "rnumel": numels.get("r0_")}
    return assemble(text, layout, kernel.device_info, values, per_group, sorted(kernel.written), nbytes)


def _rows(
    kernel: VulkanKernel, sections: list[Section], indexing: list[str], accesses: list[vectorize.Access]
) -> tuple[str, int, dict[str, Any]]:
    """The skeleton of a reduction, rows of a workgroup, and what the skeleton takes."""
    hoisted = hoist(sections, max(1, kernel.layout.elements))
    across, widened = kernel.layout.across, None
    if across > 1 and divides(across, kernel.features.numel) and not kernel.index_checks:
        widened = columns.widen(sections, hoisted, indexing, across, widening.along_x(kernel), accesses)
    if widened is not None:
        (sections, hoisted), width = widened, 1
    else:
        kernel.layout = dataclasses.replace(kernel.layout, across=1)
        width = widening.rows(kernel, sections, accesses)
    layout = kernel.layout
    unroll = _unrolled(kernel, sections, width)
    deferred = defer(sections, hoisted, kernel.written) if kernel.row_sums else None
    functions = [scan.glsl() for scan in kernel.scans]
    shared = [(register, array, layout.workgroup) for (register, _), array in kernel.shared.items()]
    if kernel.row_sort is not None:
        functions.append(kernel.row_sort.functions())
        shared += kernel.row_sort.shared(layout.rows)
    specific = {
        "layout": layout,
        "subgroup": heuristics.fold_subgroup(kernel.device_info, layout, []),
        "width": width,
        "unroll": unroll,
        "whole": widening.whole_rows(kernel),
        "short_row": _known_below(kernel.features.reduction_numel, 1 << 30),
        "few_rows": _known_below(kernel.features.numel, 1 << 30),
        "hoisted": hoisted,
        "sections": sections,
        "functions": functions,
        "shared": shared,
        "column_sums": kernel.column_sums,
        "row_sums": [(*sums, glsl_type(dtype), literal(0, dtype)) for *sums, dtype in kernel.row_sums],
        "deferred": deferred,
        "together": getattr(kernel.features, "together", 1),
    }
    return "reduction.glsl.jinja", layout.rows * layout.across * layout.turns, specific


def _elements(
    kernel: VulkanKernel, sections: list[Section], indexing: list[str], accesses: list[vectorize.Access]
) -> tuple[str, int, dict[str, Any]]:
    """The same of an elementwise kernel, with the elements of a workgroup (of a tile: 1)."""
    workgroup = kernel.pointwise_layout.workgroup
    body = [line for s in sections for line in s.body]
    lines = [*indexing, *body]
    kernel.tile = widening.tile(kernel, lines, accesses)
    wide = None if kernel.tile is not None else widening.elements(kernel, lines, accesses)
    kernel.width = wide.width if wide is not None else 1
    specific = {
        "tile": kernel.tile,
        "workgroup": workgroup,
        "wide": wide,
        "tail": wide is not None and not divides(wide.width, kernel.features.numel),
        "body": vectorize.scalar(body, accesses),
    }
    if kernel.tile is not None:
        return "tile.glsl.jinja", 1, specific
    return "pointwise.glsl.jinja", workgroup * kernel.width, specific


def _unrolled(kernel: VulkanKernel, sections: list[Section], width: int) -> int:
    """Elements that a pass of the loops over the row takes."""
    if kernel.layout.elements:
        return 1
    loops = sum(s.loop or bool(pending.parts) for s, pending in zip(sections, kernel.pending, strict=True))
    row, lanes = kernel.features.reduction_numel, kernel.layout.lanes * width * kernel.layout.batch
    longest = heuristics.longest_row(kernel.device_info, kernel.layout)
    if longest is not None:
        V.graph.sizevars.guard_or_false(sympy.Le(row, longest))
    return loop_limit.unrolled(kernel.device_info, row, lanes, loops, kernel.passes_within)


def _known_below(numel: sympy.Expr, bound: int) -> bool:
    return isinstance(numel, (int, sympy.Integer)) and int(numel) < bound
