"""How far a result may be off because its arguments are rounded: no order of computing it does better.

A result in finite precision is backward stable when it is the exact one of arguments moved by a rounding error
(Higham, Accuracy and Stability of Numerical Algorithms, section 1.5). Where values cancel, two such results differ by
far more than a tolerance made for well-conditioned ones, and which of them is nearer to the exact one is chance.
So is how far the CPU is off at one sample, where an operator's own intermediate results are rounded (a softmax that its
gradient reads): its error over the moved samples tells what its precision is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from vkinductor.conformance.entry import Sample

# Random signs of the moves; the largest change counts.
DRAWS = 8

# How many times its usual size (root mean square) an error of the CPU's may be: of a normal distribution, one value of
# 16,000 is further off.
DEVIATIONS = 4


def moved(sample: Sample, generator: torch.Generator) -> Sample:
    """A sample whose floating-point tensors are off by a unit in their dtype's last place, in double precision."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value
        signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
        wide = value.detach().double() * (1 + signs * torch.finfo(value.dtype).eps)
        return wide.requires_grad_(value.requires_grad)

    return Sample(*tree_map(move, tuple(sample)))


def rounded(sample: Sample, like: Sample) -> Sample:
    """``sample`` in the dtypes of ``like``."""

    def narrow(value: Any, own: Any) -> Any:
        if not isinstance(own, torch.Tensor) or not own.is_floating_point():
            return own
        return value.detach().to(own.dtype).requires_grad_(own.requires_grad)

    return Sample(*tree_map(narrow, tuple(sample), tuple(like)))


def errors(
    run: Callable[[Sample], list[Any] | None],
    cpu: Callable[[Sample], list[Any] | None],
    sample: Sample,
    exact: list[Any],
) -> list[Any]:
    """For each tensor of ``exact``, element by element: how large the CPU's errors are, by those at ``moved`` samples.

    run: the results of a sample in double precision, cpu: in the sample's own, None when there are none.
    """
    generator = torch.Generator().manual_seed(3)
    squares = [torch.zeros_like(e) if isinstance(e, torch.Tensor) else None for e in exact]
    for _ in range(DRAWS):
        narrow = rounded(moved(sample, generator), sample)
        found, right = cpu(narrow), run(narrow)
        if found is None or right is None or not len(found) == len(right) == len(exact):
            continue
        for f, r, total in zip(found, right, squares, strict=True):
            if total is not None and isinstance(f, torch.Tensor) and f.shape == r.shape == total.shape:
                error = f.double() - r
                total += torch.where(error.isfinite(), error, 0).square()
    return [None if total is None else DEVIATIONS * (total / DRAWS).sqrt() for total in squares]


def spread(run: Callable[[Sample], list[Any] | None], sample: Sample, exact: list[Any]) -> list[Any]:
    """For each tensor of ``exact``, element by element: how far ``moved`` samples take it; None for what is no tensor.

    run: the results of a sample in double precision, None when there are none.
    """
    generator = torch.Generator().manual_seed(2)
    widest = [torch.zeros_like(e) if isinstance(e, torch.Tensor) else None for e in exact]
    for _ in range(DRAWS):
        results = run(moved(sample, generator))
        if results is None or len(results) != len(exact):
            continue
        for i, (result, e, so_far) in enumerate(zip(results, exact, widest, strict=True)):
            if so_far is None or not isinstance(result, torch.Tensor) or result.shape != e.shape:
                continue
            change = (result - e).abs()
            widest[i] = torch.maximum(so_far, torch.where(change.isfinite(), change, 0))
    return widest
