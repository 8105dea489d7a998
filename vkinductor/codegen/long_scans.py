"""Scans of long rows in three steps: blocks of a row like rows of their own, the blocks' totals, both combined.

A row is scanned by one workgroup, so a device idles while few rows are long. And lavapipe ends long loops
(loop_limit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.ir import Pointwise
from torch._inductor.ops_handler import MockHandler
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Max, Min, ModularIndexing

from .compat import size_hint
from .heuristics import scan_blocks
from .scans import exact_sum

Create = Callable[..., Sequence[Any]]

_HALVES = (torch.float16, torch.bfloat16)


def _is_float_sum(dtypes: Sequence[torch.dtype], combine: Callable[..., Any]) -> bool:
    if tuple(dtypes) != (torch.float32,):
        return False
    with V.set_ops_handler(MockHandler()):
        (result,) = combine(("a",), ("b",))
    return str(result) == str(MockHandler.add("a", "b"))


def _widened(
    whole: Create,
    *,
    dtypes: tuple[torch.dtype, ...],
    inner_fns: tuple[Callable[[Sequence[Any]], Any], ...],
    **rest: Any,
) -> Sequence[Any]:
    """Half-precision results whose blocks and their totals are kept in float32: each result is rounded once, as where
    one workgroup scans a row. Scans with an index among their states select and round nothing."""

    def wide(inner: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        return lambda index: ops.to_dtype(inner(index), torch.float32)

    def rounded(result: Any, dtype: torch.dtype) -> Any:
        load = result.make_loader()
        return Pointwise.create(
            device=rest["device"], dtype=dtype, inner_fn=lambda index: ops.to_dtype(load(index), dtype),
            ranges=rest["size"],
        )  # fmt: skip

    singles = (torch.float32,) * len(dtypes)
    results = create(whole, dtypes=singles, inner_fns=tuple(map(wide, inner_fns)), **rest)
    return [rounded(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]


def create(
    whole: Create,
    *,
    device: torch.device,
    dtypes: tuple[torch.dtype, ...],
    inner_fns: tuple[Callable[[Sequence[Any]], Any], ...],
    size: list[Any],
    axis: int,
    combine_fn: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]],
    **kwargs: Any,
) -> Sequence[Any]:
    """``ir.Scan.create`` (which is ``whole``) on this device: the results, one a dtype, of shape ``size``."""
    from vkinductor.runtime import context

    row, rows = size[axis], sympy_product([*size[:axis], *size[axis + 1 :]])
    limit, block = scan_blocks(context.get().info, size_hint(rows))
    rest = {"combine_fn": combine_fn, **kwargs}
    options = {"device": device, "dtypes": dtypes, **rest}
    if V.graph.sizevars.guard_or_false(sympy.Le(row, limit)):
        return whole(inner_fns=inner_fns, size=size, axis=axis, **options)
    if _is_float_sum(dtypes, combine_fn):
        # Blocks' totals near 1000 are off by more than what torch allows a sum near zero.
        def nothing(index: Sequence[Any]) -> Any:
            return ops.constant(0.0, torch.float32)

        high, _ = create(
            whole,
            inner_fns=(*inner_fns, nothing),
            size=size,
            axis=axis,
            **{**options, "dtypes": (torch.float32, torch.float32), "combine_fn": exact_sum},
        )
        return [high]
    if all(dtype in _HALVES for dtype in dtypes):
        return _widened(whole, device=device, dtypes=dtypes, inner_fns=inner_fns, size=size, axis=axis, **rest)
    count = CeilDiv(row, block)

    def in_block(inner: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        # Past the end of the row the last element again: nothing reads what comes of it.
        def load(index: Sequence[Any]) -> Any:
            at = Min(index[axis] * block + index[axis + 1], row - 1)
            return inner([*index[:axis], at, *index[axis + 2 :]])

        return load

    blocked = [*size[:axis], count, sympy.Integer(block), *size[axis + 1 :]]
    parts = whole(inner_fns=tuple(map(in_block, inner_fns)), size=blocked, axis=axis + 1, **options)
    part_loaders = [part.make_loader() for part in parts]

    def last(loader: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        return lambda index: loader([*index[: axis + 1], sympy.Integer(block - 1), *index[axis + 1 :]])

    sums = create(
        whole,
        inner_fns=tuple(map(last, part_loaders)),
        size=[*size[:axis], count, *size[axis + 1 :]],
        axis=axis,
        **options,
    )
    for total in sums:
        total.realize()  # small; and torch's simplifier fails where such indices nest
    sum_loaders = [total.make_loader() for total in sums]

    def combined(position: int) -> Callable[[Sequence[Any]], Any]:
        def load(index: Sequence[Any]) -> Any:
            number, inside = FloorDiv(index[axis], block), ModularIndexing(index[axis], 1, block)
            before = [*index[:axis], Max(number - 1, 0), *index[axis + 1 :]]
            here = [*index[:axis], number, inside, *index[axis + 1 :]]
            own = tuple(loader(here) for loader in part_loaders)
            result = combine_fn(tuple(loader(before) for loader in sum_loaders), own)[position]
            first = ops.lt(ops.index_expr(index[axis], torch.int64), ops.constant(block, torch.int64))
            return ops.where(first, own[position], result)

        return load

    return [
        Pointwise.create(device=device, dtype=dtype, inner_fn=combined(i), ranges=size)
        for i, dtype in enumerate(dtypes)
    ]
