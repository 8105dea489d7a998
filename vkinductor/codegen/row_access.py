"""What a reduction kernel will read and write of its rows, from the scheduler's nodes: its layout depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.dependencies import MemoryDep
from torch._inductor.virtualized import V

from .alignment import divides
from .heuristics import RowAccess


def row_access(nodes: Iterable[Any], rows: Any, row: Any) -> RowAccess:
    """The accesses of ``nodes`` to ``rows`` rows of ``row`` elements; of width 1 where most are not contiguous."""
    known = V.graph.sizevars.statically_known_equals
    # What reads or writes every element decides, where there is such.
    nodes = list(nodes)
    made = {name for node in nodes for name in node.get_buffer_names()}
    found: dict[bool, list[_Seen]] = {True: [], False: []}
    for node in nodes:
        reduces = node.is_reduction()
        _, (numel, rnumel) = node.group
        if not reduces and not known(numel * rnumel, rows * row):
            continue
        for dep in node.read_writes.reads | (set() if reduces else node.read_writes.writes):
            if not isinstance(dep, MemoryDep) or not dep.var_names or dep.index.is_number:
                continue
            used, last = dep.index.free_symbols, dep.var_names[-1]
            if last not in used:
                continue
            along = dep.stride1_for_last_dim()
            columns = not along and any(dep.index.coeff(name) == 1 for name in dep.var_names[:-1])
            dtype = V.graph.get_dtype(dep.name)
            seen = _Seen(dep.name, dtype, along, columns, dep in node.read_writes.reads)
            whole = used.issuperset(dep.var_names) and known(dep.get_numel(), rows * row)
            found[whole].append(seen)
    decisive = found[True] or found[False]
    reads = max(1, len({seen.name for seen in decisive if seen.read} - made))
    writes = max(1, len({seen.name for seen in decisive if not seen.read}))
    sizes = [seen.nbytes for seen in decisive if seen.along]
    if 2 * len(sizes) <= len(decisive) or not sizes:
        sizes = [seen.nbytes for seen in decisive] or [4]
        columns = 2 * sum(seen.columns for seen in decisive) > len(decisive)
        across = next((w for w in (8, 4, 2) if divides(w, rows)), 1) if columns else 1
        return RowAccess(min(sizes), max(sizes), reads, columns=columns, across=across)
    width = next((w for w in (16, 8, 4, 2) if divides(w, row)), 1)
    rounded = any(seen.dtype == torch.bfloat16 and not seen.read for seen in decisive)
    return RowAccess(min(sizes), max(sizes), reads, width, writes=writes, rounded=rounded)


@dataclass(frozen=True)
class _Seen:
    """One access: contiguous ``along`` the row, or with neighbouring ``columns`` as neighbours in memory."""

    name: str
    dtype: torch.dtype
    along: bool
    columns: bool
    read: bool

    @property
    def nbytes(self) -> int:
        """Of an element."""
        return self.dtype.itemsize
