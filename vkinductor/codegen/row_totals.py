"""One sum of what each row gives, as a loss is: the row's kernel computes what is summed, and the sum reads nothing else.

Inductor writes what is summed into the sum's own kernel. Of log-softmax and NLL that would read a row's maximum and its
sum again, and the score of the target from memory, each after its place, in few workgroups while the device is idle; the
row's kernel has all of them, and many rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
from torch._inductor import ir
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from . import heuristics
from .heuristics import device_reads_dominate


def summing(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, the lowering of aten.sum, for a GPU."""

    def lower(x: Any, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        if device_reads_dominate() and _has_one_result(x.get_size(), axis) and _is_made_of_rows(x):
            kept_apart().add(x.realize())
        return original(x, axis, *args, **kwargs)

    return lower


def kept_apart() -> set[str]:
    """Buffers of the graph being lowered that are not to be computed in the kernel that sums them."""
    graph: Any = V.graph
    if not hasattr(graph, "vkinductor_row_totals"):
        graph.vkinductor_row_totals = set()
    found: set[str] = graph.vkinductor_row_totals
    return found


def fusable(node1: Any, node2: Any) -> bool:
    """Whether Inductor may fuse two nodes: not what is summed with reductions of anything but its rows."""
    apart = kept_apart()
    if not apart:
        return True
    if heuristics.forced("count_apart") and node1.is_reduction() and node2.is_reduction() and node1.group[1][0] == 1:
        return False
    made = apart & (set(node1.get_buffer_names()) | set(node2.get_buffer_names()))
    return not made or node1.group[1][0] == node2.group[1][0]


def _has_one_result(size: Sequence[Any], axis: Any) -> bool:
    if axis is None or axis == () or axis == []:
        return True
    summed = {a % len(size) for a in (axis if isinstance(axis, (list, tuple)) else (axis,)) if size}
    return all(i in summed or n == 1 for i, n in enumerate(size))


def _is_made_of_rows(x: Any) -> bool:
    """Whether ``x``, which is no buffer yet, is computed from a result each of as many rows that are reduced."""
    data = getattr(x, "data", None)
    if not isinstance(data, ir.StorageBox) or not isinstance(data.data, ir.Pointwise):
        return False
    rows = sympy_product(x.get_size())
    if not isinstance(rows, (int, sympy.Integer)):
        return False
    buffers = (V.graph.try_get_buffer(name) for name in data.get_read_names())
    reductions = [b.data for b in buffers if isinstance(b, ir.ComputedBuffer) and isinstance(b.data, ir.Reduction)]
    return any(sympy_product(reduction.get_size()) == rows for reduction in reductions)
