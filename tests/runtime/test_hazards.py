"""Hazards: exact on small cases, and equal to a brute-force model on random ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vkinductor.runtime import hazards
from vkinductor.runtime.hazards import (
    COMPUTE_READ,
    COMPUTE_WRITE,
    TRANSFER_READ,
    TRANSFER_WRITE,
    HazardTracker,
    Intervals,
)

A, B, C = (0x1000, 256), (0x2000, 256), (0x3000, 256)


def test_independent_dispatches_need_no_barrier():
    tracker = HazardTracker()
    assert tracker.compute((A,), (B,)) == 0
    assert tracker.compute((A,), (C,)) == 0


def test_read_after_write_waits_for_the_write():
    tracker = HazardTracker()
    assert tracker.compute((), (A,)) == 0
    assert tracker.compute((A,), (B,)) == COMPUTE_WRITE
    assert tracker.compute((A,), (C,)) == 0  # A's write is already ordered with compute


def test_write_after_read_is_an_execution_dependency():
    tracker = HazardTracker()
    assert tracker.compute((A,), ()) == 0
    assert tracker.compute((), (A,)) == COMPUTE_READ


def test_write_after_write():
    tracker = HazardTracker()
    tracker.compute((), (A,))
    assert tracker.compute((), (A,)) == COMPUTE_WRITE


def test_in_place_is_no_hazard_with_itself_but_with_the_next():
    tracker = HazardTracker()
    assert tracker.compute((A,), (A,)) == 0
    assert tracker.compute((A,), (A,)) == COMPUTE_WRITE | COMPUTE_READ


def test_reads_never_conflict():
    tracker = HazardTracker()
    assert [tracker.compute((A, B), ()) for _ in range(3)] == [0, 0, 0]


def test_touching_ranges_do_not_overlap():
    tracker = HazardTracker()
    tracker.compute((), ((0x1000, 256),))
    assert tracker.compute(((0x1100, 4),), ()) == 0
    assert tracker.compute(((0x0FFC, 4),), ()) == 0
    assert tracker.compute(((0x10FF, 1),), ()) == COMPUTE_WRITE | COMPUTE_READ  # the reads above too


def test_empty_ranges_are_no_access():
    tracker = HazardTracker()
    tracker.compute((), ((0x1000, 256),))
    assert tracker.compute(((0x1080, 0),), ((0x1080, 0),)) == 0
    tracker.clear()
    tracker.compute((), ((0x1080, 0),))
    assert tracker.compute(((0x1000, 256),), ()) == 0


def test_interior_view_of_a_written_buffer():
    tracker = HazardTracker()
    tracker.compute((), ((0x1000, 4096),))
    assert tracker.compute(((0x1800, 4),), (B,)) == COMPUTE_WRITE


def test_each_pair_of_stages_is_ordered_separately():
    tracker = HazardTracker()
    tracker.compute((), (A,))
    assert tracker.compute((A,), (B,)) == COMPUTE_WRITE  # orders A with compute, not with transfers
    assert tracker.transfer((A,), (C,)) == COMPUTE_WRITE | COMPUTE_READ
    assert tracker.compute((C,), ()) & TRANSFER_WRITE
    assert tracker.transfer((C,), ()) & TRANSFER_WRITE
    assert tracker.transfer((C,), ()) == 0


def test_transfer_that_reads_is_waited_for_before_a_dispatch_writes():
    tracker = HazardTracker()
    assert tracker.transfer((A,), (B,)) == 0
    assert tracker.compute((), (A,)) == TRANSFER_READ | TRANSFER_WRITE


def test_transfer_beside_unrelated_dispatches_needs_no_barrier():
    tracker = HazardTracker()
    tracker.compute((A,), (B,))
    tracker.compute((B,), (A,))
    assert tracker.transfer((), (C,)) == 0


def test_too_many_dispatches_before_a_transfer_make_it_wait(monkeypatch):
    monkeypatch.setattr(hazards, "MAX_UNORDERED_DISPATCHES", 4)
    tracker = HazardTracker()
    for _ in range(5):
        tracker.compute((A,), (B,))
    assert tracker.transfer((), (C,)) == COMPUTE_WRITE | COMPUTE_READ
    assert tracker.transfer((), ((0x9000, 4),)) == 0


def test_clear_forgets():
    tracker = HazardTracker()
    tracker.compute((A,), (B,))
    tracker.transfer((C,), ((0x4000, 4),))
    tracker.clear()
    assert tracker.compute((B,), (A, C)) == 0


_range = st.tuples(st.integers(0, 60), st.integers(0, 12))
_ranges = st.lists(_range, max_size=3).map(tuple)
_command = st.tuples(st.booleans(), _ranges, _ranges)


@given(st.lists(_ranges, max_size=12), _ranges)
def test_intervals_equal_a_set_of_bytes(added, asked):
    intervals, model = Intervals(), set()
    for ranges in added:
        intervals.add(ranges)
        model |= {byte for at, n in ranges for byte in range(at, at + n)}
    assert intervals.meets(asked) == any(byte in model for at, n in asked for byte in range(at, at + n))
    covered = [b for lo, hi in zip(intervals.starts, intervals.ends, strict=True) for b in range(lo, hi)]
    assert covered == sorted(model)


def _bytes(ranges):
    return {byte for at, n in ranges for byte in range(at, at + n)}


@settings(max_examples=300)
@given(st.lists(_command, max_size=14))
def test_every_conflict_is_ordered_and_nothing_else_asks_for_a_barrier(commands):
    """Model: each earlier command remembers which later stages have been ordered with it."""
    tracker = HazardTracker()
    earlier: list[tuple[bool, set, set, set]] = []  # is transfer, reads, writes, stages ordered with it
    for is_transfer, reads, writes in commands:
        read, written = _bytes(reads), _bytes(writes)
        needed = 0
        for was_transfer, old_reads, old_writes, ordered in earlier:
            conflict = read & old_writes or written & old_writes or written & old_reads
            if conflict and is_transfer not in ordered:
                needed |= 12 if was_transfer else 3
        mask = (tracker.transfer if is_transfer else tracker.compute)(reads, writes)
        assert bool(mask & 3) == bool(needed & 3)
        assert bool(mask & 12) == bool(needed & 12)
        for was_transfer, old_reads, old_writes, ordered in earlier:
            waited = mask & (12 if was_transfer else 3)
            if waited:
                if is_transfer not in ordered:
                    write_bit, read_bit = (4, 8) if was_transfer else (1, 2)
                    assert not old_writes or mask & write_bit
                    assert not (old_reads and not old_writes) or mask & (read_bit | write_bit)
                ordered.add(is_transfer)
        earlier.append((is_transfer, read, written, set()))
