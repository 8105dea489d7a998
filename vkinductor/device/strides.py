"""Arithmetic on sizes and strides: which dimensions can be merged, which memory a tensor covers. Pure; knows
no device.

Strides are in elements and never negative, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A kernel's indices are 32 bits wide and signed once a driver widens them to 64.
MAX_INDEX = 2**31 - 1


@dataclass(frozen=True)
class Walk:
    """A loop nest over two strided operands, outermost dimension first."""

    size: tuple[int, ...]
    dst: tuple[int, ...]
    src: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        count = 1
        for n in self.size:
            count *= n
        return count


def merge(size: Sequence[int], dst: Sequence[int], src: Sequence[int]) -> Walk:
    """The same walk in as few dimensions as possible, in the destination's memory order. No dimension may be
    0.

    Dimensions of size 1 vanish; neighbours that both operands step through evenly become one. At least one
    remains.
    """
    dims = sorted(
        ((d, s, n) for n, d, s in zip(size, dst, src, strict=True) if n != 1),
        key=lambda dim: dim[:2],
        reverse=True,
    )
    merged: list[tuple[int, int, int]] = []
    for d, s, n in dims:
        if merged:
            outer_d, outer_s, outer_n = merged[-1]
            if outer_d == n * d and outer_s == n * s:
                merged[-1] = (d, s, outer_n * n)
                continue
        merged.append((d, s, n))
    if not merged:
        merged = [(1, 1, 1)]
    return Walk(tuple(n for _, _, n in merged), tuple(d for d, _, _ in merged), tuple(s for _, s, _ in merged))


def widen(walk: Walk, unit: int, alignment: int, limit: int = 16) -> tuple[Walk, int]:
    """(walk, unit) with units of up to `limit` bytes instead of `unit`, where both operands' inner runs allow
    it.

    alignment: the largest power of two that divides both addresses. For copies that do not look at the
    values.
    """
    size, dst, src = list(walk.size), list(walk.dst), list(walk.src)
    while (
        unit < limit
        and alignment % (2 * unit) == 0
        and dst[-1] == src[-1] == 1
        and size[-1] % 2 == 0
        and all(step % 2 == 0 for step in dst[:-1] + src[:-1])
    ):
        unit *= 2
        size[-1] //= 2
        dst[:-1] = [step // 2 for step in dst[:-1]]
        src[:-1] = [step // 2 for step in src[:-1]]
    return Walk(tuple(size), tuple(dst), tuple(src)), unit


def split(walk: Walk, rank: int) -> list[tuple[Walk, int, int]]:
    """Pieces of at most `rank` dimensions whose indices fit in 31 bits: (walk, dst offset, src offset) in
    elements."""
    last_dst = sum((n - 1) * s for n, s in zip(walk.size, walk.dst, strict=True))
    last_src = sum((n - 1) * s for n, s in zip(walk.size, walk.src, strict=True))
    fits = max(walk.count, last_dst, last_src) < MAX_INDEX
    if fits and len(walk.size) <= rank:
        return [(walk, 0, 0)]
    pieces: list[tuple[Walk, int, int]] = []
    if not fits:  # halve the dimension that reaches furthest
        axis = max(range(len(walk.size)), key=lambda i: (walk.size[i] - 1) * max(walk.dst[i], walk.src[i], 1))
        half = walk.size[axis] // 2
        parts = ((0, half), (half, walk.size[axis] - half))
        for start, n in parts:
            size = (*walk.size[:axis], n, *walk.size[axis + 1 :])
            for piece, d, s in split(Walk(size, walk.dst, walk.src), rank):
                pieces.append((piece, d + start * walk.dst[axis], s + start * walk.src[axis]))
        return pieces
    inner = Walk(walk.size[1:], walk.dst[1:], walk.src[1:])
    for i in range(walk.size[0]):
        for piece, d, s in split(inner, rank):
            pieces.append((piece, d + i * walk.dst[0], s + i * walk.src[0]))
    return pieces


def extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements lie between the first and the last element of a strided tensor, both included; 0 if
    it has none."""
    last = 0
    for n, s in zip(size, stride, strict=True):
        if n == 0:
            return 0
        last += (n - 1) * s
    return last + 1


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements; a dimension of size 0 counts as 1, as torch does."""
    strides = []
    step = 1
    for n in reversed(size):
        strides.append(step)
        step *= n or 1
    return tuple(reversed(strides))


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill one run of memory, each place exactly once, in whatever order of
    dimensions."""
    step = 1
    for s, n in sorted((s, n) for n, s in zip(size, stride, strict=True) if n != 1):
        if s != step:
            return False
        step *= n
    return True


def same_order(size: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two strides place every element alike (the stride of a dimension of size 1 does not matter)."""
    return all(x == y or n <= 1 for n, x, y in zip(size, a, b, strict=True))
