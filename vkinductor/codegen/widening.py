"""Several neighbours an invocation: which of the ways (vectorize.py, tiles.py) a finished kernel takes, if any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch._inductor.utils import prefix_is_reduction

from . import early_loads, heuristics, tiles, vectorize
from .alignment import WIDEST, divides
from .compat import size_hint
from .sections import Section


def along_x(kernel: Any) -> vectorize.Dimension:
    """The dimension of ``kernel``'s elements, or of its rows where it reduces."""
    (tree,) = [tree for tree in kernel.range_trees if tree.prefix == "x"]
    return vectorize.Dimension("xindex", kernel.index_dtype, tree, kernel.range_tree_nodes)


def tile(kernel: Any, lines: list[str], accesses: list[vectorize.Access]) -> tiles.Tile | None:
    """The tile of an elementwise kernel that reads across what it writes."""
    sizes = [access.dtype.itemsize for access in accesses]
    shapes = heuristics.tile_shapes(kernel.device_info, min(sizes, default=4))
    if not shapes or kernel.index_checks:
        return None
    widths = [width for width in (8, 4, 2) if width * min(sizes) <= WIDEST]
    shared = kernel.device_info.limits.max_shared_memory
    return tiles.find(lines, along_x(kernel), accesses, widths, shapes, shared)


def moving(kernel: Any, accesses: Iterable[vectorize.Access]) -> list[int]:
    """Bytes of an element, by access of an elementwise kernel, of those that neighbours do not have in common, if any:
    a row's target and statistics are read once, however many elements an invocation has."""
    dimension, accesses = along_x(kernel), list(accesses)
    apart = [access for access in accesses if dimension.moves(access.index)]
    return [access.dtype.itemsize for access in apart or accesses]


def elements(kernel: Any, lines: list[str], accesses: list[vectorize.Access]) -> vectorize.Wide | None:
    """The body of an elementwise kernel for several elements an invocation; None where one is better."""
    dimension, tree = along_x(kernel), along_x(kernel).tree
    if kernel.index_checks or not accesses:
        return None
    sizes = moving(kernel, accesses)
    widths = heuristics.pointwise_widths(kernel.device_info, min(sizes), max(sizes), size_hint(tree.numel))
    fitting = [width for width in widths if divides(width, tree.numel)]
    if not fitting and heuristics.tails(size_hint(tree.numel)):
        # Elements left over cost a second body: not for small kernels, nor where half the width has none.
        fitting = widths
    found = vectorize.best(fitting, lambda width: [vectorize.vectorize(lines, width, dimension, accesses)])
    return None if found is None else found[1][0]


def rows(kernel: Any, sections: list[Section], accesses: list[vectorize.Access]) -> int:
    """Rewrite ``sections`` for several neighbours of the row a step, where that is better; how many."""
    (tree,) = [tree for tree in kernel.range_trees if prefix_is_reduction(tree.prefix)]
    dimension = vectorize.Dimension("r0_index", kernel.index_dtype, tree, kernel.range_tree_nodes)
    loops = [section for section in sections if section.loop and section.body]
    width, found = kernel.layout.width, None
    if width > 1 and not kernel.index_checks and not any(section.parts for section in kernel.pending):
        found = vectorize.best(
            [width], lambda width: [vectorize.vectorize(s.body, width, dimension, accesses) for s in loops]
        )
    for section in sections:
        section.row = vectorize.scalar(section.row, accesses)
        section.after = vectorize.scalar(section.after, accesses)
        if found is None or not section.loop:
            section.body = vectorize.scalar(section.body, accesses)
    if found is None:
        return 1
    early = heuristics.early_bytes(kernel.device_info)
    of_row = {"xindex"} | {e.name for e in kernel.range_tree_nodes.values() if e.root is not tree}
    for section, wide in zip(loops, found[1], strict=True):
        section.wide = wide
        section.early = early_loads.find(wide, kernel.layout.elements // width, early, of_row)
    return width


def whole_rows(kernel: Any) -> bool:
    """Whether every invocation has a row, and all of its elements are there."""
    layout = kernel.layout
    step = layout.lanes * (layout.elements or layout.step)
    return divides(layout.rows * layout.across * layout.turns, kernel.features.numel) and divides(
        step, kernel.features.reduction_numel
    )
