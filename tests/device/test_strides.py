"""Merging, widening and splitting of walks, against an enumeration of every element."""

from __future__ import annotations

import itertools
import random

import pytest

from vkinductor.device import strides
from vkinductor.device.strides import Walk


def places(walk: Walk) -> list[tuple[int, int]]:
    """(dst, src) offset of every element."""
    return sorted(
        (sum(i * s for i, s in zip(at, walk.dst, strict=False)), sum(i * s for i, s in zip(at, walk.src, strict=False)))
        for at in itertools.product(*map(range, walk.size))
    )


def random_walk(rng: random.Random) -> Walk:
    rank = rng.randint(0, 5)
    size = tuple(rng.choice([1, 2, 3, 4]) for _ in range(rank))

    def shuffled(gap: bool) -> tuple[int, ...]:
        step, steps = 1, [0] * rank
        for axis in rng.sample(range(rank), rank):
            steps[axis] = step
            step *= size[axis] + (rng.randint(0, 1) if gap else 0)
        return tuple(steps)

    src = tuple(rng.choice([s, s, 0]) for s in shuffled(True))
    return Walk(size, shuffled(rng.random() < 0.5), src)


@pytest.mark.parametrize("seed", range(50))
def test_merge_and_split_keep_every_element(seed: int) -> None:
    walk = random_walk(random.Random(seed))
    merged = strides.merge(walk.size, walk.dst, walk.src)
    assert places(merged) == places(walk)
    pieces = strides.split(merged, 2)
    assert all(len(piece.size) <= 2 for piece, _, _ in pieces)
    moved = sorted((d + at, s + to) for piece, at, to in pieces for d, s in places(piece))
    assert moved == places(walk)


def test_merge_of_contiguous_is_one_dimension() -> None:
    assert strides.merge((2, 3, 4), (12, 4, 1), (12, 4, 1)) == Walk((24,), (1,), (1,))
    assert strides.merge((2, 1, 3), (3, 99, 1), (3, 7, 1)) == Walk((6,), (1,), (1,))
    assert strides.merge((), (), ()) == Walk((1,), (1,), (1,))


def test_merge_follows_the_destination() -> None:
    # A transposed copy writes its rows in order.
    assert strides.merge((4, 3), (1, 4), (3, 1)) == Walk((3, 4), (4, 1), (1, 3))


def test_widen() -> None:
    rows = Walk((5, 8), (16, 1), (8, 1))
    assert strides.widen(rows, 2, 256) == (Walk((5, 1), (2, 1), (1, 1)), 16)
    assert strides.widen(rows, 2, 4) == (Walk((5, 4), (8, 1), (4, 1)), 4)
    assert strides.widen(Walk((5, 8), (9, 1), (8, 1)), 2, 256)[1] == 2
    assert strides.widen(Walk((5, 3), (16, 1), (8, 1)), 2, 256)[1] == 2
    assert strides.widen(Walk((8,), (2,), (1,)), 2, 256)[1] == 2


def test_split_of_indices_beyond_31_bits() -> None:
    huge = Walk((3, 2**31), (2**31, 1), (2**31, 1))
    pieces = strides.split(huge, 6)
    assert sum(piece.count for piece, _, _ in pieces) == 3 * 2**31
    ends = []
    for piece, dst, src in pieces:
        assert strides.extent(piece.size, piece.dst) <= strides.MAX_INDEX
        assert dst == src
        ends.append((dst, dst + strides.extent(piece.size, piece.dst)))
    ends.sort()
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
    sparse = strides.split(Walk((2,), (2**40,), (1,)), 6)
    assert [(dst, src) for _, dst, src in sparse] == [(0, 0), (2**40, 1)]


def test_extent_and_density() -> None:
    assert strides.extent((2, 3), (10, 2)) == 15
    assert strides.extent((2, 0), (1, 1)) == 0
    assert strides.extent((), ()) == 1
    assert strides.is_dense((2, 3), (1, 2))
    assert strides.is_dense((2, 1, 3), (3, 77, 1))
    assert not strides.is_dense((2, 3), (4, 1))
    assert not strides.is_dense((2, 3), (0, 1))
    assert strides.contiguous((2, 0, 3)) == (3, 3, 1)
    assert strides.same_order((2, 1), (1, 5), (1, 9))
