"""Results whose order among equal values torch leaves open: positions, which are compared by what they point at.

torch.sort and torch.argsort that are not stable ("the order of elements which compare equal is not guaranteed"),
torch.topk ("indices of tied elements are not guaranteed to be stable"), torch.kthvalue and torch.median with a
dimension (any position of the value; torch.nanmedian refers to it). Other positions (max, min, argmax, mode, cummax)
are compared as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.conformance.entry import Sample


@dataclass(frozen=True)
class Ties:
    """result: which result holds the positions, in the first argument along a dimension.

    dim_at: where the dimension is among the arguments when no keyword gives it; default: the dimension when nothing
    does, None where there are no positions then; distinct: whether the positions of one slice must differ.
    """

    result: int
    dim_at: int
    default: int | None
    distinct: bool


TABLE = {
    "argsort": Ties(0, 1, -1, distinct=True),
    "kthvalue": Ties(1, 2, -1, distinct=False),
    "median": Ties(1, 1, None, distinct=False),
    "nanmedian": Ties(1, 1, None, distinct=False),
    "sort": Ties(1, 1, -1, distinct=True),
    "topk": Ties(1, 2, -1, distinct=True),
}


def canonical(
    name: str, sample: Sample, result: int, got: torch.Tensor, expected: torch.Tensor, with_gradients: bool
) -> tuple[torch.Tensor, torch.Tensor] | str:
    """What to compare in place of a result of an entry: itself, unless its order among equal values is open.

    Positions become the values they point at; where results are the gradients of what requires one, that of the first
    argument is ordered by its values, and by itself among equal ones. A string says why positions cannot be right.
    """
    ties = TABLE.get(name)
    if ties is None:
        return got, expected
    is_gradient = with_gradients and sample.args[0].requires_grad
    if sample.kwargs.get("stable") or result != (0 if is_gradient else ties.result):
        return got, expected
    values = sample.args[0].detach()
    place = sample.args[ties.dim_at] if len(sample.args) > ties.dim_at else ties.default
    dim: Any = sample.kwargs.get("dim", place)
    if values.dim() == 0 or (dim is None and not is_gradient):
        return got, expected
    if is_gradient:
        if dim is None:
            values, got, expected, dim = values.reshape(-1), got.reshape(-1), expected.reshape(-1), 0
        return _ordered(got, values, dim), _ordered(expected, values, dim)
    if got.dim() < values.dim():
        got, expected = got.unsqueeze(dim), expected.unsqueeze(dim)
    if bool(((got < 0) | (got >= values.shape[dim])).any()):
        return f"positions from {int(got.min())} to {int(got.max())} in a dimension of {values.shape[dim]}"
    if ties.distinct and bool((got.sort(dim).values.diff(dim=dim) == 0).any()):
        return "a position occurs twice"
    return values.gather(dim, got), values.gather(dim, expected)


def _ordered(gradient: torch.Tensor, values: torch.Tensor, dim: int) -> torch.Tensor:
    """``gradient`` in the order of (value, gradient) along ``dim``."""
    order = gradient.argsort(dim)
    order = order.gather(dim, values.gather(dim, order).sort(dim=dim, stable=True).indices)
    return gradient.gather(dim, order)
