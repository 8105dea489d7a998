"""How far a result may be off because its arguments are rounded: no order of computing it does better.

A result in finite precision is backward stable when it is the exact one of arguments moved by a rounding error
(Higham, Accuracy and Stability of Numerical Algorithms, section 1.5). Where values cancel, two such results differ by
far more than a tolerance made for well-conditioned ones, and which of them is nearer to the exact one is chance.
So is how far the CPU is off at one sample, where an operator's own intermediate results are rounded (a softmax that its
gradient reads): its error over the moved samples tells what its precision is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from vkinductor.conformance.entry import Sample

# Random signs of the moves; the largest change counts.
DRAWS = 8

# How many times its usual size (root mean square) an error of the CPU's may be: of a normal distribution, one value of
# 16,000 is further off.
DEVIATIONS = 4


Results = Callable[[Sample], "list[Any] | None"]


def widened(sample: Sample) -> Sample:
    """``sample`` in double precision."""

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    return Sample(*tree_map(widen, tuple(sample)))


def moved(sample: Sample, generator: torch.Generator) -> Sample:
    """``sample`` in double precision, each number off by a unit in the last place of its tensor's dtype."""

    def move(wide: Any, own: Any) -> Any:
        if not isinstance(own, torch.Tensor) or not own.is_floating_point():
            return wide
        signs = torch.randint(0, 2, own.shape, generator=generator) * 2 - 1
        return (wide.detach() * (1 + signs * torch.finfo(own.dtype).eps)).requires_grad_(own.requires_grad)

    return Sample(*tree_map(move, tuple(widened(sample)), tuple(sample)))


def rounded(sample: Sample, like: Sample) -> Sample:
    """``sample`` in the dtypes of ``like``."""

    def narrow(value: Any, own: Any) -> Any:
        if not isinstance(own, torch.Tensor) or not own.is_floating_point():
            return own
        return value.detach().to(own.dtype).requires_grad_(own.requires_grad)

    return Sample(*tree_map(narrow, tuple(sample), tuple(like)))


def allowance(double: Results, cpu: Results, sample: Sample, exact: list[Any]) -> list[Any]:
    """For each tensor of ``exact``, element by element, what a result may be off; None for what is no tensor.

    That is the largest change of the exact result over ``moved`` samples, or the usual size of the CPU's errors there
    times DEVIATIONS. double: the results of a sample in double precision, cpu: of one in its own dtypes, None when
    there are none. exact: ``double`` of ``sample``.
    """
    generator = torch.Generator().manual_seed(2)
    changes, squares = ([_zeros(e) for e in exact] for _ in range(2))
    for _ in range(DRAWS):
        wide = moved(sample, generator)
        narrow = rounded(wide, sample)
        for i, change in _differences(double(wide), exact, changes):
            changes[i] = torch.maximum(changes[i], change)
        for i, error in _differences(cpu(narrow), double(widened(narrow)), squares):
            squares[i] += error.square()
    return [
        None if change is None else torch.maximum(change, DEVIATIONS * (total / DRAWS).sqrt())
        for change, total in zip(changes, squares, strict=True)
    ]


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value, dtype=torch.float64) if isinstance(value, torch.Tensor) else None


def _differences(
    some: list[Any] | None, others: list[Any] | None, like: list[Any]
) -> Iterator[tuple[int, torch.Tensor]]:
    """(position, absolute difference) of tensors of equal shape; 0 where it is not finite."""
    if some is None or others is None or not len(some) == len(others) == len(like):
        return
    for i, (a, b, shape) in enumerate(zip(some, others, like, strict=True)):
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and shape is not None
        if tensors and a.shape == b.shape == shape.shape:
            difference = (a.double() - b.double()).abs()
            yield i, torch.where(difference.isfinite(), difference, 0)
