"""The memory plan of a program: intermediates share storage when they are never alive together.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2): the
largest value first, each at the lowest offset where it meets no value that lives at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Offsets are multiples of this: what the allocator promises of every address.
ALIGNMENT = 256


@dataclass(frozen=True)
class Value:
    """One intermediate. `first` and `last`: positions of the first and the last dispatch that touches it."""

    nbytes: int
    first: int
    last: int

    def alive_with(self, other: Value) -> bool:
        """Whether both are needed at some dispatch."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offset of each value in one range of `nbytes`."""

    offsets: tuple[int, ...]
    nbytes: int


def plan(values: Sequence[Value]) -> MemoryPlan:
    """Place values; those of no bytes lie at offset 0."""
    offsets = [0] * len(values)
    placed: list[int] = []  # by offset
    end = 0
    for i in sorted(range(len(values)), key=lambda i: (-values[i].nbytes, values[i].first)):
        value = values[i]
        if not value.nbytes:
            continue
        size = _aligned(value.nbytes)
        at = 0
        for j in placed:
            if not value.alive_with(values[j]):
                continue
            if offsets[j] >= at + size:
                break
            at = max(at, offsets[j] + _aligned(values[j].nbytes))
        offsets[i] = at
        end = max(end, at + size)
        placed.append(i)
        placed.sort(key=offsets.__getitem__)
    return MemoryPlan(tuple(offsets), end)


def check(values: Sequence[Value], made: MemoryPlan) -> None:
    """Prove a plan: no two values that are alive together overlap, and all lie inside its range.

    Raises:
        AssertionError: names the two values, or the one outside.
    """
    events: list[tuple[int, int, int]] = []
    for i, value in enumerate(values):
        assert made.offsets[i] % ALIGNMENT == 0, f"value {i} at {made.offsets[i]} is not aligned"
        assert made.offsets[i] + value.nbytes <= made.nbytes or not value.nbytes, f"value {i} runs over the end"
        events += [(value.first, 1, i), (value.last + 1, 0, i)]
    alive: set[int] = set()
    for _, begins, i in sorted(events):
        if not begins:
            alive.discard(i)
            continue
        lo, hi = made.offsets[i], made.offsets[i] + values[i].nbytes
        for j in alive:
            apart = hi <= made.offsets[j] or made.offsets[j] + values[j].nbytes <= lo or lo == hi
            assert apart, f"values {i} and {j} are alive together and overlap: {values[i]}, {values[j]}"
        alive.add(i)


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT
