"""Sums of what rows come to, as a loss is, in the kernel that reduces the rows: what it waits for is at hand there.

Inductor makes two kernels of a sum over many rows, of which the first reads the results of rows that another kernel has
written, and waits for it. Here each workgroup adds up its own rows, in the first kernel's place; the second stays as it
is. Which sums these are is decided before there are kernels (``rows_together``), from the graph; the scheduler is told
which groups of nodes fit together, and the sums become values of rows when the kernel is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy
import torch
from torch import fx
from torch._inductor import config, ir
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.scheduler import FusedMixOrderReductions, Scheduler
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from vkinductor.runtime import context

from . import heuristics

aten = torch.ops.aten

# Operators that Inductor makes sums of.
SUMS = frozenset((aten.sum, aten.mean))
# Names of operators that reduce rows.
_OF_ROWS = frozenset(("amax", "amin", "mean", "prepare_softmax_online", "prod", "sum", "var_mean"))
# Where a graph keeps how many rows are summed together, by the number of all.
_KNOWN = "vkinductor_rows_together"
_SUMMED = (torch.float32, torch.int64)


class Features(SIMDKernelFeatures):
    """What a kernel of rows is made of that also adds up values of ``together`` rows each."""

    together = 1


def register() -> None:
    """Keep sums of a few rows reductions, which Inductor else writes out as additions of an elementwise kernel."""
    original: Any = ir.Reduction.create_multilayer.__func__  # type: ignore[attr-defined]

    @functools.wraps(original)
    def create_multilayer(
        cls: Any, device: Any, dst_dtype: Any, src_dtype: Any, inner_fn: Any, ranges: Any, reduction_ranges: Any,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        length = sympy_product(reduction_ranges)
        few = device.type == "vulkan" and length.is_Integer and V.graph.__dict__.get(_KNOWN, {}).get(int(length), 1) > 1
        with config.patch(unroll_reductions_threshold=1) if few else contextlib.nullcontext():
            return original(
                cls, device, dst_dtype, src_dtype, inner_fn, ranges, reduction_ranges, *args, **kwargs
            )  # fmt: skip

    ir.Reduction.create_multilayer = classmethod(create_multilayer)  # type: ignore[method-assign, assignment]
    unfused: Any = Scheduler.fuse_nodes

    @functools.wraps(unfused)
    def fuse_nodes(self: Any, nodes: Any) -> Any:
        prepare(nodes)
        return unfused(self, nodes)

    Scheduler.fuse_nodes = fuse_nodes  # type: ignore[method-assign]


@dataclass(frozen=True)
class Sums:
    """Sums over ``rows`` rows, in parts of ``together`` rows."""

    rows: int
    together: int


def elements(node: Any) -> int | None:
    """Of a graph's value (of the first, where there are several); None where that varies."""
    value = getattr(node, "meta", {}).get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    sizes: Any = value.shape if isinstance(value, torch.Tensor) else (None,)
    return prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def rows_together(length: int) -> int:
    """How many neighbours of ``length`` values, one of each row, a sum of these adds up at first; 1: there are no such
    rows in the graph that is lowered, or too long ones."""
    graph: Any = V.graph
    known: dict[int, int] = graph.__dict__.setdefault(_KNOWN, {})
    if length not in known:
        nodes = getattr(getattr(graph, "module", None), "graph", fx.Graph()).nodes
        columns = next(filter(None, (_summed(node, length) for node in nodes)), None)
        apart = columns is None or heuristics.program_workgroup(context.get().info) is not None
        known[length] = 1 if apart else heuristics.rows_together(length, columns or 1)
    return known[length]


def _summed(node: fx.Node, length: int) -> int | None:
    """Elements of a row where ``node`` reduces ``length`` rows, whose results, with others, come to one sum."""
    name = getattr(node.target, "__name__", "").split(".")[0]
    if name not in _OF_ROWS or elements(node) != length or not node.args:
        return None
    whole = elements(node.args[0])
    if not whole or whole <= length or whole % length:
        return None
    seen, left = {node}, [node]
    while left:
        for user in left.pop().users:
            if getattr(user.target, "overloadpacket", None) in SUMS and elements(user) == 1:
                if any(elements(arg) == length for arg in user.all_input_nodes):
                    return whole // length
            elif user not in seen and elements(user) in (length, whole):
                seen.add(user)
                left.append(user)
    return None


def prepare(nodes: Sequence[Any]) -> None:
    """Make sums among the scheduler's ``nodes``, which are not fused yet, elementwise nodes of rows: they read of each
    row what its reductions write."""
    for node in nodes:
        found = _found(node) if heuristics.device_reads_dominate() else None
        if found is None:
            continue
        writes = node.read_writes.writes
        node.cancel_reduction_split()
        node.extract_pw_from_reduction()
        node.swap_pw_red_dimension()
        node.refresh_dependencies(normalize=True, need_clear_tiling_cache=True)
        node.set_read_writes(dataclasses.replace(node.read_writes, writes=writes))
        node.vkinductor_sums = found


def restore(nodes: Sequence[Any]) -> None:
    """Make them kernels of their own again: no kernel of rows has taken them."""
    for node in nodes:
        node.node.get_default_sizes_body.clear_cache(node.node)
        node._compute_attrs()
        del node.vkinductor_sums


def _found(node: Any) -> Sums | None:
    """``node`` as the first of two kernels that sum values of rows."""
    buffer = getattr(node, "node", None)
    if not isinstance(buffer, ir.ComputedBuffer) or not isinstance(buffer.data, ir.Reduction):
        return None
    device = buffer.get_device()
    if buffer._split_size is None or buffer.data.reduction_type != "sum" or buffer.get_dtype() not in _SUMMED:
        return None
    results, rows = sympy_product(buffer._original_ranges or ()), sympy_product(buffer._original_reduction_ranges or ())
    numbers = (results, rows, buffer._split_size)
    if device is None or device.type != "vulkan" or not all(isinstance(n, (int, sympy.Integer)) for n in numbers):
        return None
    found = Sums(int(rows), int(buffer._split_size))
    few = 1 < found.together <= heuristics.MOST_ROWS_TOGETHER and found.rows % found.together == 0
    return found if few and results == 1 else None


def parted(group: Any) -> tuple[list[Any], list[Any]]:
    """The nodes of a group that reduce rows, or come with these, and those that sum what rows come to."""
    nodes = group.get_nodes()
    sums = [node for node in nodes if hasattr(node, "vkinductor_sums")]
    return [node for node in nodes if node not in sums], sums


def ordered(node1: Any, node2: Any) -> tuple[Any, Any] | None:
    """(rows, sums), where one of two groups of nodes reduces rows and the other sums what rows come to, in a way that
    one kernel can; else None."""
    for rows, sums in ((node1, node2), (node2, node1)):
        others, found = parted(sums)
        if found and not others and not rows.ancestors & sums.get_operation_names() and _fits(rows, found):
            return rows, sums
    return None


def fusable(node1: Any, node2: Any, usual: Callable[[], bool]) -> bool:
    """Whether two groups of nodes may be one; ``usual``: as far as others are concerned."""
    (rows1, sums1), (rows2, sums2) = parted(node1), parted(node2)
    if not sums1 and not sums2:
        return usual()
    if not rows1 and not rows2:
        return len({node.vkinductor_sums for node in (*sums1, *sums2)}) == 1
    # Sums alone take nothing else along: they may have to be made anew.
    return ordered(node1, node2) is not None if not rows1 or not rows2 else usual()


def _fits(rows: Any, sums: Sequence[Any]) -> bool:
    own, there = parted(rows)
    numel, rnumel = rows.group[1]
    if isinstance(rows, FusedMixOrderReductions) or not all(_is_plain(node) for node in own):
        return False
    alike = len({node.vkinductor_sums for node in (*there, *sums)}) == 1
    return alike and rows.is_reduction() and numel == sums[0].vkinductor_sums.rows and rnumel not in (0, 1)


def _is_plain(node: Any) -> bool:
    data = getattr(node.node, "data", None)
    return isinstance(data, (ir.Pointwise, ir.Reduction)) and not isinstance(data, ir.Scatter)


def features(scheduling: Any, rows: list[Any], sums: list[Any]) -> Features:
    """What the kernel of ``rows`` with ``sums`` is made of."""
    _, (numel, rnumel) = next(node for node in rows if node.is_reduction()).group
    made = Features(scheduling.generate_node_schedule([*rows, *sums], numel, rnumel), numel, rnumel)
    made.together = sums[0].vkinductor_sums.together
    return made
