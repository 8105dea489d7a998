"""Which commands need a barrier before them: read and write ranges in, the accesses to wait for out. Pure
Python.

Ranges are (address, nbytes). A hazard is RAW, WAW or WAR between a command and an earlier one of either stage
that no barrier has ordered with the command's stage yet. Recording the barrier is the stream's business.

Sets are kept for each (earlier stage, later stage) pair, because a compute -> compute barrier says nothing
about a later transfer. Compute -> compute is the hot pair and uses sorted intervals; compute -> transfer
keeps a list of references to the callers' ranges, which costs a dispatch one append.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

Ranges = Sequence[tuple[int, int]]

# Bits of a barrier's source: which earlier accesses it waits for. Writes are also made visible.
COMPUTE_WRITE = 1
COMPUTE_READ = 2
TRANSFER_WRITE = 4
TRANSFER_READ = 8

# What is waited for after a recorded program, whose ranges are not kept.
AFTER_PROGRAM = COMPUTE_WRITE | COMPUTE_READ

# Beyond this many dispatches since the last compute -> transfer barrier, a transfer simply waits for all of
# them.
MAX_UNORDERED_DISPATCHES = 4096


class Intervals:
    """A set of disjoint half-open address intervals, sorted; touching ones are merged."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def meets(self, ranges: Ranges) -> bool:
        """Whether any (address, nbytes) overlaps the set; empty ranges overlap nothing."""
        starts, ends = self.starts, self.ends
        for address, nbytes in ranges:
            i = bisect_left(starts, address + nbytes)  # intervals before i start below the range's end
            if i and nbytes and ends[i - 1] > address:
                return True
        return False

    def add(self, ranges: Ranges) -> None:
        """Add each (address, nbytes)."""
        starts, ends = self.starts, self.ends
        for lo, nbytes in ranges:
            hi = lo + nbytes
            i = bisect_left(ends, lo)
            if i == len(ends):
                if nbytes:
                    starts.append(lo)
                    ends.append(hi)
                continue
            if not nbytes or (starts[i] <= lo and ends[i] >= hi):
                continue
            j = bisect_right(starts, hi)
            if i == j:
                starts.insert(i, lo)
                ends.insert(i, hi)
            else:
                starts[i:j] = [min(lo, starts[i])]
                ends[i:j] = [max(hi, ends[j - 1])]

    def clear(self) -> None:
        """Empty the set."""
        self.starts.clear()
        self.ends.clear()


def ranges_overlap(ranges: Ranges, lo: int, hi: int) -> bool:
    """Whether any (address, nbytes) of `ranges` meets [lo, hi); empty ones on either side meet nothing."""
    if lo >= hi:
        return False
    for address, nbytes in ranges:  # noqa: SIM110 - a generator takes twice as long, and a read looks at hundreds
        if address < hi and address + nbytes > lo and nbytes:
            return True
    return False


class _Accesses:
    """Reads and writes of one earlier stage that are not yet ordered with one later stage."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads = Intervals()
        self.writes = Intervals()

    def conflicts(self, reads: Ranges, writes: Ranges) -> bool:
        before = self.writes
        if before.starts and (before.meets(reads) or before.meets(writes)):
            return True
        before = self.reads
        return bool(before.starts) and before.meets(writes)

    def add(self, reads: Ranges, writes: Ranges) -> None:
        self.reads.add(reads)
        self.writes.add(writes)

    def clear(self) -> int:
        """Forget all; returns bit 1 if there were writes, bit 2 if there were reads."""
        found = (1 if self.writes.starts else 0) | (2 if self.reads.starts else 0)
        self.writes.clear()
        self.reads.clear()
        return found


class HazardTracker:
    """The accesses that no barrier has ordered yet. Each method returns the bits to wait for, 0 for no
    barrier.
    """

    __slots__ = (
        "_all_before_transfer",
        "_compute_after_program",
        "_compute_compute",
        "_compute_transfer",
        "_transfer_after_program",
        "_transfer_compute",
        "_transfer_transfer",
    )

    def __init__(self) -> None:
        self._compute_compute = _Accesses()
        self._transfer_compute = _Accesses()
        self._transfer_transfer = _Accesses()
        self._compute_transfer: list[tuple[Ranges, Ranges]] = []
        self._all_before_transfer = False
        self._compute_after_program = self._transfer_after_program = False

    def program(self) -> int:
        """A recorded program, which does not begin with a barrier of its own: it waits for whatever no barrier has
        ordered with dispatches yet, and the next command of each stage waits for it. Never without a barrier, also on
        an idle device: programs read argument memory that the host has filled in anew, and caches may hold the old.
        """
        mask = AFTER_PROGRAM | self._transfer_compute.clear() << 2
        self.clear()
        self._compute_after_program = self._transfer_after_program = True
        return mask

    def clear(self) -> None:
        """Forget everything: the device is idle and its writes are visible."""
        self._compute_compute.clear()
        self._transfer_compute.clear()
        self._transfer_transfer.clear()
        self._compute_transfer.clear()
        self._all_before_transfer = False
        self._compute_after_program = self._transfer_after_program = False

    def compute(self, reads: Ranges, writes: Ranges) -> int:
        """A dispatch that reads and writes these ranges; an in-place range is no hazard with itself."""
        accesses = self._compute_compute
        mask = accesses.clear() if accesses.conflicts(reads, writes) else 0
        accesses.reads.add(reads)
        accesses.writes.add(writes)
        accesses = self._transfer_compute
        if (accesses.writes.starts or accesses.reads.starts) and accesses.conflicts(reads, writes):
            mask |= accesses.clear() << 2
        pending = self._compute_transfer
        pending.append((reads, writes))
        if len(pending) > MAX_UNORDERED_DISPATCHES:
            pending.clear()
            self._all_before_transfer = True
        if self._compute_after_program:
            self._compute_after_program = False
            mask |= AFTER_PROGRAM
        return mask

    def transfer(self, reads: Ranges, writes: Ranges) -> int:
        """A copy or fill that reads and writes these ranges."""
        mask = 0
        accesses = self._transfer_transfer
        if accesses.conflicts(reads, writes):
            mask = accesses.clear() << 2
        accesses.add(reads, writes)
        if self._all_before_transfer or self._conflicts_with_compute(reads, writes):
            mask |= COMPUTE_WRITE | COMPUTE_READ
            self._compute_transfer.clear()
            self._all_before_transfer = False
        self._transfer_compute.add(reads, writes)
        if self._transfer_after_program:
            self._transfer_after_program = False
            mask |= AFTER_PROGRAM
        return mask

    def _conflicts_with_compute(self, reads: Ranges, writes: Ranges) -> bool:
        for earlier_reads, earlier_writes in self._compute_transfer:
            for address, nbytes in reads:
                if ranges_overlap(earlier_writes, address, address + nbytes):
                    return True
            for address, nbytes in writes:
                end = address + nbytes
                if ranges_overlap(earlier_writes, address, end) or ranges_overlap(earlier_reads, address, end):
                    return True
        return False
