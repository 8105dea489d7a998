"""How many pairs of queries and keys a mask of booleans lets see each other, block by block.

A mask that came as a tensor does not tell what it is: a causal one over a cache, a window, a packed batch. Of a block
in which nobody sees anybody a kernel need not even load the keys, and one in which all do takes no look at the mask.
One more kernel finds that out, once for all layers that share a mask. (H200, 32 heads of 64 over 4 of keys in float16,
causal by a mask, calls that wait for each other: 512 queries and keys 24 us without counts, 17 with them; 512 queries
over a cache of 4096 keys 158 and 33; the kernel that counts takes 4.)
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor.ir import Reduction, TensorBox
from torch._inductor.utils import ceildiv
from torch._inductor.virtualized import V, ops

from vkinductor.codegen import heuristics
from vkinductor.codegen.alignment import divides
from vkinductor.codegen.compat import size_hint
from vkinductor.codegen.template_kernel import realized

from .problem import Problem

# Fewer keys are not worth the kernel that counts.
_FEWEST_STEPS = 4


def block_counts(mask: TensorBox, problem: Problem, rows: int, keys: int) -> Any:
    """The counts of ``mask`` [B or 1, H or 1, L, S] in blocks of ``rows`` x ``keys``, int32 [B or 1, H or 1, blocks
    of L, blocks of S], where a kernel that walks such blocks gains by them; else None.

    heuristics.override(attention_counts=...) makes them, or none.
    """
    same = V.graph.sizevars.statically_known_equals
    length, along = mask.get_size()[2:]
    if problem.mask != "bool" or not (same(length, problem.queries) and same(along, problem.keys)):
        return None
    forced = heuristics.forced("attention_counts")
    if not (size_hint(along) >= _FEWEST_STEPS * keys and size_hint(length) >= rows if forced is None else forced):
        return None
    mask.realize()
    graph: Any = V.graph
    made = graph.__dict__.setdefault("vkinductor_mask_counts", {})
    layout = mask.get_layout()
    key = mask.get_name(), tuple(layout.stride), layout.offset, rows, keys
    if key not in made:
        made[key] = realized(_counted(mask, rows, keys))
    return made[key]


def _counted(mask: TensorBox, rows: int, keys: int) -> TensorBox:
    batch, heads, length, along = mask.get_size()
    load = mask.make_loader()
    whole = divides(rows, length) and divides(keys, along)

    def seen(index: Any, inside: Any) -> Any:
        b, h, i, j = index
        row, column = i * rows + inside[0], j * keys + inside[1]

        def one() -> Any:
            return ops.to_dtype(load([b, h, row, column]), torch.int32)

        if whole:
            return one()
        fits = ops.and_(
            ops.lt(ops.index_expr(row, torch.int32), ops.index_expr(length, torch.int32)),
            ops.lt(ops.index_expr(column, torch.int32), ops.index_expr(along, torch.int32)),
        )
        return ops.masked(fits, one, 0)

    return Reduction.create(
        device=mask.get_device_or_error(),
        dst_dtype=torch.int32,
        src_dtype=torch.int32,
        inner_fn=seen,
        ranges=[batch, heads, ceildiv(length, rows), ceildiv(along, keys)],
        reduction_ranges=[sympy.Integer(rows), sympy.Integer(keys)],
        reduction_type="sum",
    )
