"""Dividing blocks into ranges: best fit, splitting, and merging of freed neighbours. Pure arithmetic on
addresses.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Arena:
    """The free ranges of a set of blocks. A range never spans two blocks, even if their addresses touch."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []  # (nbytes, address), sorted
        self._size_at: dict[int, int] = {}  # address of a free range -> nbytes
        self._start_of: dict[int, int] = {}  # its end -> address
        self._bases: dict[int, int] = {}  # base of a block -> nbytes
        self.free_bytes = 0

    def add_block(self, base: int, nbytes: int) -> None:
        """Add a block, all of it free."""
        self._bases[base] = nbytes
        self._insert(base, nbytes)

    def take(self, nbytes: int) -> int | None:
        """The address of a range of exactly `nbytes`, cut from the smallest free range that holds it, or
        None.
        """
        i = bisect_left(self._by_size, (nbytes, 0))
        if i == len(self._by_size):
            return None
        size, address = self._by_size[i]
        self._remove(address, size)
        if size > nbytes:
            self._insert(address + nbytes, size - nbytes)
        return address

    def give(self, address: int, nbytes: int) -> None:
        """Return a range; it merges with free neighbours of its block."""
        end = address + nbytes
        if end not in self._bases and (after := self._size_at.get(end)) is not None:
            self._remove(end, after)
            nbytes += after
        if address not in self._bases and (before := self._start_of.get(address)) is not None:
            size = self._size_at[before]
            self._remove(before, size)
            address, nbytes = before, nbytes + size
        self._insert(address, nbytes)

    def unused_blocks(self) -> list[int]:
        """Bases of the blocks that are wholly free."""
        return [base for base, nbytes in self._bases.items() if self._size_at.get(base) == nbytes]

    def remove_block(self, base: int) -> int:
        """Forget a wholly free block; returns its size."""
        nbytes = self._bases.pop(base)
        self._remove(base, nbytes)
        return nbytes

    def largest(self) -> int:
        """Bytes of the largest free range."""
        return self._by_size[-1][0] if self._by_size else 0

    def _insert(self, address: int, nbytes: int) -> None:
        insort(self._by_size, (nbytes, address))
        self._size_at[address] = nbytes
        self._start_of[address + nbytes] = address
        self.free_bytes += nbytes

    def _remove(self, address: int, nbytes: int) -> None:
        del self._by_size[bisect_left(self._by_size, (nbytes, address))]
        del self._size_at[address]
        del self._start_of[address + nbytes]
        self.free_bytes -= nbytes
