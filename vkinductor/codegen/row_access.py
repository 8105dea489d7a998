"""What a reduction kernel will read and write of its rows, from the scheduler's nodes: its layout depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch._inductor.dependencies import MemoryDep
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from .alignment import divides
from .heuristics import RowAccess


def row_access(nodes: Iterable[Any], row: Any) -> RowAccess:
    """The accesses of ``nodes`` along rows of ``row`` elements; of width 1 where most are not contiguous."""
    sizes: list[int] = []
    reads: set[str] = set()
    apart: list[int] = []
    columns = 0
    for node in nodes:
        reduces = node.is_reduction()
        if not reduces and not divides_whole(node, row):
            continue
        for dep in node.read_writes.reads | (set() if reduces else node.read_writes.writes):
            if not isinstance(dep, MemoryDep) or not dep.var_names or dep.index.is_number:
                continue
            if not dep.stride1_for_last_dim():
                if dep.var_names[-1] in dep.index.free_symbols:
                    apart.append(V.graph.get_dtype(dep.name).itemsize)
                    columns += any(dep.index.coeff(name) == 1 for name in dep.var_names[:-1])
                continue
            sizes.append(V.graph.get_dtype(dep.name).itemsize)
            if dep in node.read_writes.reads and len(dep.index.free_symbols) >= len(dep.var_names):
                reads.add(dep.name)
    if len(sizes) <= len(apart):
        columns_all = bool(apart) and 2 * columns > len(apart)
        return RowAccess(min(apart, default=4), max(apart, default=4), max(1, len(reads)), columns=columns_all)
    width = next((w for w in (16, 8, 4, 2) if divides(w, row)), 1)
    return RowAccess(min(sizes), max(sizes), max(1, len(reads)), width)


def divides_whole(node: Any, row: Any) -> bool:
    """Whether elementwise ``node`` computes rows, not one value a row."""
    _, (numel, rnumel) = node.group
    return rnumel != 1 or (V.graph.sizevars.statically_known_multiple_of(numel, row) and _ends_with(node, row))


def _ends_with(node: Any, row: Any) -> bool:
    """Whether the last loops of ``node`` go over a row."""
    sizes = [s for group in node.get_ranges() for s in group]
    known = V.graph.sizevars.statically_known_multiple_of
    return any(known(sympy_product(sizes[i:]), row) for i in range(len(sizes)))
