"""The catalogue: every entry, and which samples of it are checked.

Samples are those of the entry, made reproducible, and copies of a few of them whose tensors are not contiguous.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from vkinductor.conformance import opdb, rows
from vkinductor.conformance.entry import Entry, Sample


@functools.cache
def _entries() -> dict[str, Entry]:
    return {**opdb.entries(), **rows.entries()}


def names() -> list[str]:
    """Names of the entries: those of op_db in its order, then the rows of operators.csv ("row:aten.cat")."""
    return list(_entries())


def entry(name: str) -> Entry:
    """The entry of a name."""
    return _entries()[name]


def samples(name: str, dtype: torch.dtype, limit: int | None = None) -> Iterator[Sample]:
    """Samples of an entry's arguments, at most `limit`, spread over the entry's own.

    Empty and zero-dimensional ones are kept when there are any, and one more has tensors that are not contiguous.
    """
    torch.manual_seed(0)
    random.seed(0)
    made = list(entry(name).make(dtype))
    if not made:
        return
    chosen = _spread(made, limit)
    yield from chosen
    strided = next((s for s in chosen if any(t.dim() > 1 and t.numel() > 1 for t in tensors(s))), None)
    if strided is not None:
        yield Sample(*tree_map(_not_contiguous, tuple(strided)))


def _spread(made: list[Sample], limit: int | None) -> list[Sample]:
    if limit is None or len(made) <= limit:
        return made
    special = [
        next((i for i, s in enumerate(made) if any(map(kind, tensors(s)))), None)
        for kind in (lambda t: t.numel() == 0, lambda t: t.dim() == 0)
    ]
    picked = dict.fromkeys(i for i in special if i is not None)
    for n in range(limit):
        if len(picked) >= limit:
            break
        picked[n * len(made) // limit] = None
    return [made[i] for i in sorted(picked)]


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _not_contiguous(value: Any) -> Any:
    """The same values with strides of a transposed tensor with gaps."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.numel() < 2 or value.layout != torch.strided:
        return value
    order = list(reversed(range(value.dim())))
    wide = value.detach().permute(order)
    room = wide.new_zeros([*wide.shape[:-1], 2 * wide.shape[-1]])
    room[..., ::2] = wide
    return room[..., ::2].permute(order).requires_grad_(value.requires_grad)
