"""Arenas against a model: ranges never overlap, never span blocks, and merge completely."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vkinductor.runtime.arena import Arena


def test_best_fit_takes_the_smallest_that_holds():
    arena = Arena()
    arena.add_block(0, 1024)
    arena.add_block(10_000, 512)
    assert arena.take(512) == 10_000
    assert arena.take(512) == 0
    assert arena.take(1024) is None


def test_freed_neighbours_merge():
    arena = Arena()
    arena.add_block(0, 1024)
    parts = [arena.take(256) for _ in range(4)]
    for part in (parts[1], parts[3], parts[0], parts[2]):
        arena.give(part, 256)
    assert arena.take(1024) == 0


def test_ranges_do_not_merge_across_blocks_that_touch():
    arena = Arena()
    arena.add_block(0, 256)
    arena.add_block(256, 256)
    first, second = arena.take(256), arena.take(256)
    arena.give(first, 256)
    arena.give(second, 256)
    assert arena.take(512) is None
    assert sorted(arena.unused_blocks()) == [0, 256]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_random_use(steps):
    arena = Arena()
    arena.add_block(0, 100)
    arena.add_block(100, 60)
    live: dict[int, int] = {}
    for is_take, number in steps:
        if is_take:
            address = arena.take(number)
            if address is None:
                continue
            assert address // 100 == (address + number - 1) // 100  # inside one block
            assert all(address + number <= a or a + n <= address for a, n in live.items())
            live[address] = number
        elif live:
            address = sorted(live)[number % len(live)]
            arena.give(address, live.pop(address))
        assert arena.free_bytes == 160 - sum(live.values())
    for address, number in live.items():
        arena.give(address, number)
    assert sorted(arena.unused_blocks()) == [0, 100]
    assert arena.largest() == 100
