"""Which of several candidates is the fastest, from measurements that are few and noisy. No device, no torch.

The heuristic's choice is replaced only by one that is clearly faster where both take turns, so that equal ones do not
change from one run to the next, and that nothing is kept for a lucky first look.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

# By how much a candidate has to be faster than the heuristic's choice in the rounds, and in which part of them it has
# to be the faster one: of seven equal ones, so many come about once in sixteen.
MARGIN, OFTEN = 1.02, 0.8
# After a first look: how near to the best a candidate is that is measured again, and how many are at most.
NEAR = 1.15
FINALISTS = 4
# Samples of a first look, and rounds in which the finalists take turns.
LOOKS = 3
ROUNDS = 7
# The part of the time that the first look may take.
LOOKING = 0.85


@dataclass
class Measured(Generic[T]):
    """A candidate, its samples of the first look and those of the rounds, microseconds. ``time``: the median of the
    rounds, or of the look where it was in none."""

    candidate: T
    samples: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)

    @property
    def time(self) -> float:
        return statistics.median(self.rounds or self.samples)

    def beats(self, other: Measured[T]) -> bool:
        """Whether it is clearly faster than ``other``: in the rounds of both, else, without any, far beyond noise."""
        pairs = list(zip(self.rounds, other.rounds, strict=False))
        if not pairs:
            return NEAR * self.time < other.time
        often = sum(own < theirs for own, theirs in pairs) >= OFTEN * len(pairs)
        return often and MARGIN * self.time < other.time


def select(
    candidates: Iterable[T],
    sample: Callable[[T], float],
    expired: Callable[[float], bool],
    baseline: T | None,
) -> tuple[T | None, list[Measured[T]]]:
    """The choice, and what was measured of each candidate, in their order.

    ``sample`` takes one measurement. ``expired``: whether a part of the time is up; the rest of it after the first
    look is for the finalists, and what was measured until its end decides.
    ``baseline``: the heuristic's choice, None when it does not run. None when nothing was measured.
    """
    found: list[Measured[T]] = []
    best = float("inf")
    for candidate in candidates:
        if found and expired(LOOKING):
            break
        measured = Measured(candidate)
        for _ in range(LOOKS):
            measured.samples.append(sample(candidate))
            if measured.samples[-1] > 2 * best or expired(1.0):
                break
        best = min(best, measured.time)
        found.append(measured)
    if not found:
        return None, found
    near = sorted((m for m in found if m.time <= NEAR * best), key=lambda m: m.time)[:FINALISTS]
    finalists = [m for m in found if m in near or m.candidate == baseline]
    for _ in range(ROUNDS if len(finalists) > 1 else 0):
        for measured in finalists:
            if expired(1.0):
                break
            measured.rounds.append(sample(measured.candidate))
    fastest = min(finalists, key=lambda m: m.time)
    base = next((m for m in found if m.candidate == baseline), None)
    if base is not None and not fastest.beats(base):
        fastest = base
    return fastest.candidate, found
