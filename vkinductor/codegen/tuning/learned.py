"""Choices for problems that were never measured, from the nearest ones that were.

The distance of two problems of a family with equal dtypes and layouts is the largest factor between two of their
sizes. Past a factor of two the table's heuristic is as good a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .family import Bucket

# The largest factor between a size and that of a neighbour.
REACH = 2.0


def distance(one: Bucket, other: Bucket) -> float:
    """Sum of the logarithms (base 2) of the factors between sizes; infinite where one is past ``REACH``, or where
    ``kind`` or the sizes' names differ."""
    if one.kind != other.kind or [s.name for s in one.sizes] != [s.name for s in other.sizes]:
        return math.inf
    logs = [
        abs(math.log2(max(a.rounded, 1)) - math.log2(max(b.rounded, 1)))
        for a, b in zip(one.sizes, other.sizes, strict=True)
    ]
    return math.inf if any(d > math.log2(REACH) for d in logs) else sum(logs)


def nearest(bucket: Bucket, tuned: Iterable[tuple[Bucket, str]]) -> str | None:
    """The choice of the nearest of ``tuned`` (bucket, choice); of equally near ones, that of the smaller text."""
    ranked = sorted((distance(bucket, other), str(other), choice) for other, choice in tuned)
    return ranked[0][2] if ranked and ranked[0][0] < math.inf else None
