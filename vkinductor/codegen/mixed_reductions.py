"""Reductions over rows and sums over columns of the same elements in one kernel, which reads them once.

That is what the gradients of norms are. A workgroup takes several rows one after the other, and each lane keeps the
sums of its columns over these. They go where the first of the two kernels into which Inductor cuts such a sum would
have written its own; the second kernel stays as it is. Inductor has this fusion for Triton ("mix order"): its scheduler
holds the two groups of nodes together; this module says which, and makes the sums part of the rows' kernel.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import ir, scheduler
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.utils import sympy_product

from . import heuristics, row_sums


class MixedFeatures(SIMDKernelFeatures):
    """What a kernel of rows is made of that also has ``sums`` sums over columns, each over ``turns`` rows at a time."""

    turns = 1
    sums = 0


def register() -> None:
    """Answer for this device where Inductor asks whether two such groups of nodes may be one. Idempotent."""
    mixed: Any = scheduler.MixOrderReduction
    original = mixed.can_fuse
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def can_fuse(node1: Any, node2: Any) -> bool:
        devices = {getattr(node.get_device(), "type", "") for node in (node1, node2)}
        return fusable(node1, node2) if devices == {"vulkan"} else bool(original(node1, node2))

    can_fuse.vkinductor = True  # type: ignore[attr-defined]
    mixed.can_fuse = staticmethod(can_fuse)


def fusable(node1: Any, node2: Any) -> bool:
    """Whether one of two groups of nodes reduces rows and the other sums columns, in a way that one kernel can."""
    if not (node1.is_reduction() and node2.is_reduction()) or not heuristics.device_reads_dominate():
        return False
    if node1.ancestors & node2.get_operation_names() or node2.ancestors & node1.get_operation_names():
        return False
    return any(_fits(rows, columns) for rows, columns in ((node1, node2), (node2, node1)))


@dataclass(frozen=True)
class Sums:
    """Sums over ``rows`` rows of each of ``columns`` columns, in parts of ``turns`` rows."""

    rows: int
    columns: int
    turns: int


def sums_of(group: Any) -> Sums | None:
    """What the reductions in a ``group`` of nodes are, if they are sums over columns in parts that are alike."""
    found = {_sums(node.node) for node in group.get_nodes() if node.is_reduction()}
    return found.pop() if len(found) == 1 else None


def _sums(buffer: Any) -> Sums | None:
    """``buffer`` as the first of two kernels that sum columns; one part after the other, as the second reads them."""
    if not (isinstance(buffer, ir.ComputedBuffer) and isinstance(buffer.data, ir.Reduction)):
        return None
    if buffer._split_size is None or buffer.data.reduction_type != "sum" or buffer.get_dtype() != torch.float32:
        return None
    layout = buffer.get_layout()
    columns, rows = sympy_product(buffer._original_ranges or ()), sympy_product(buffer._original_reduction_ranges or ())
    numbers = (rows, columns, buffer._split_size, *layout.size, *layout.stride)
    if not all(isinstance(number, (int, sympy.Integer)) for number in numbers):
        return None
    sizes = [(int(n), int(stride)) for n, stride in zip(layout.size, layout.stride, strict=True) if n != 1]
    found = Sums(int(rows), int(columns), int(buffer._split_size))
    return found if sizes == [(found.columns, 1), (found.rows // found.turns, found.columns)] else None


def _fits(rows: Any, columns: Any) -> bool:
    sums = sums_of(columns)
    if sums is None or not all(node.is_reduction() for node in columns.get_nodes()) or sums.rows % sums.turns:
        return False
    if rows.group[1] != (sums.rows, sums.columns) or not heuristics.sums_with_rows(sums.rows, sums.columns):
        return False
    if row_sums.parted(rows)[1]:
        return False
    kinds = [getattr(node.node, "data", None) for node in rows.get_nodes()]
    if not all(isinstance(kind, (ir.Pointwise, ir.Reduction)) for kind in kinds):
        return False
    mixed: Any = scheduler.MixOrderReduction
    along = all(mixed.is_contiguous_load(dep.name, rows) for dep in rows.read_writes.reads)
    return along and bool(mixed.get_common_read(rows, columns))


def features(scheduling: Any, node: Any) -> tuple[MixedFeatures, list[Any]]:
    """A fused ``node`` as what one kernel is made of, and the nodes of it that come afterwards."""
    rows, columns = (node.node1, node.node2) if sums_of(node.node1) is None else (node.node2, node.node1)
    sums = sums_of(columns)
    assert sums is not None
    reductions = [n for n in columns.get_nodes() if n.is_reduction()]
    others = [n for n in columns.get_nodes() if not n.is_reduction()]
    for n in reductions:
        n.cancel_reduction_split()
        n.extract_pw_from_reduction()
        n.swap_pw_red_dimension()
    schedule = scheduling.generate_node_schedule([*rows.get_nodes(), *reductions], sums.rows, sums.columns)
    found = MixedFeatures(schedule, sympy.Integer(sums.rows), sympy.Integer(sums.columns))
    found.turns, found.sums = sums.turns, len(reductions)
    return found, others
