"""Which of several candidates is the fastest, from measurements that are few and noisy. No device, no torch.

The heuristic's choice is replaced only by one that is clearly faster where both take turns, so that equal ones do not
change from one run to the next, and that nothing is kept for a lucky first look. Each is measured where calls wait for
each other and where they do not: what is faster in the one and slower in the other replaces nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

# By how much a candidate has to be faster than the heuristic's choice in the rounds, and in which part of them it has
# to be the faster one: of seven equal ones, so many come about once in sixteen.
MARGIN, OFTEN = 1.02, 0.8
# By how much it may be slower in either of the two measures: half of what a user is promised, the rest is noise.
HARM = 1.01
# After a first look: how near to the best a candidate is that is measured again, and in either measure to the
# heuristic's choice; and how many are at most.
NEAR = 1.15
FINALISTS = 4
# Samples of a first look, and rounds in which the finalists take turns.
LOOKS = 3
ROUNDS = 7
# The part of the time that the first look may take.
LOOKING = 0.85


class Times(NamedTuple):
    """Microseconds of a call where each waits for the one before, and where none does."""

    waiting: float
    independent: float

    @property
    def mean(self) -> float:
        """Their geometric mean: which is faster where both count."""
        return (self.waiting * self.independent) ** 0.5


@dataclass
class Measured(Generic[T]):
    """A candidate, its samples of the first look and those of the rounds. ``times``: medians of the rounds, or of the
    look where it was in none."""

    candidate: T
    samples: list[Times] = field(default_factory=list)
    rounds: list[Times] = field(default_factory=list)

    @property
    def times(self) -> Times:
        return Times(*map(statistics.median, zip(*(self.rounds or self.samples), strict=True)))

    def harms(self, other: Measured[T], most: float) -> bool:
        """Whether it takes more than ``most`` times as long as ``other`` in either measure."""
        return any(own > most * theirs for own, theirs in zip(self.times, other.times, strict=True))

    def beats(self, other: Measured[T]) -> bool:
        """Whether it is clearly faster than ``other`` and in neither measure slower: in the rounds of both, else,
        without any, far beyond noise."""
        if self.harms(other, HARM):
            return False
        pairs = list(zip(self.rounds, other.rounds, strict=False))
        if not pairs:
            return NEAR * self.times.mean < other.times.mean
        often = sum(own.mean < theirs.mean for own, theirs in pairs) >= OFTEN * len(pairs)
        return often and MARGIN * self.times.mean < other.times.mean


def select(
    candidates: Iterable[T],
    sample: Callable[[T], Times],
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
            if measured.samples[-1].mean > 2 * best or expired(1.0):
                break
        best = min(best, measured.times.mean)
        found.append(measured)
    if not found:
        return None, found
    base = next((m for m in found if m.candidate == baseline), None)
    finalists = _finalists(found, base)
    for _ in range(ROUNDS if len(finalists) > 1 else 0):
        for measured in finalists:
            if expired(1.0):
                break
            measured.rounds.append(sample(measured.candidate))
    if base is not None:
        finalists = [m for m in finalists if m.beats(base)] or [base]
    return min(finalists, key=lambda m: m.times.mean).candidate, found


def _finalists(found: list[Measured[T]], base: Measured[T] | None) -> list[Measured[T]]:
    """Those that take turns, ``base`` always among them, in the order of ``found``. What looked slower than it in one
    of the measures comes last."""

    def harms(one: Measured[T], most: float) -> bool:
        return base is not None and one.harms(base, most)

    best = min(m.times.mean for m in found if not harms(m, MARGIN))
    near = [m for m in found if m.times.mean <= NEAR * best and not harms(m, NEAR)]
    first = sorted(near, key=lambda m: (harms(m, MARGIN), m.times.mean))[:FINALISTS]
    return [m for m in found if m is base or any(m is one for one in first)]
