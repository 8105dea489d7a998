"""How vkinductor.attention_step is cut into workgroups: tiles, what they need, and which a device takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vkinductor.codegen import heuristics
from vkinductor.device.attention import DTYPES, MAX_HEAD
from vkinductor.runtime.deviceinfo import DeviceInfo

# Queries of one key head that the operator's kernel is for, and that one workgroup takes at most.
MOST_ROWS, ROWS = 32, 8
MOST_QUERIES = 8

# Registers of a lane that hold queries, or results.
MOST_HELD = 64


@dataclass(frozen=True)
class Shape:
    """What a tile has to fit. ``rows``: queries that share a head of keys; ``width``, ``width_v``: of heads;
    ``wide_k``, ``wide_v``: elements of k, v that one load takes; ``length``: new keys."""

    rows: int
    length: int
    width: int
    width_v: int
    wide_k: int
    wide_v: int

    def lanes(self, size: int) -> int:
        """Lanes of a subgroup of ``size`` that read a row."""
        words = max(-(-self.width // self.wide_k), -(-self.width_v // self.wide_v))
        return min(size, heuristics.power_of_two_at_least(words))

    def words(self, size: int) -> tuple[int, int]:
        """Loads of a lane for a row of k and of v."""
        lanes = self.lanes(size)
        return -(-self.width // (lanes * self.wide_k)), -(-self.width_v // (lanes * self.wide_v))


@dataclass(frozen=True)
class StepTile:
    """Workgroups of ``threads``, ``pieces`` for a head of keys; a line of lanes has ``unroll`` keys on their way."""

    threads: int
    unroll: int
    pieces: int

    def rows(self, shape: Shape, size: int) -> int:
        """Queries of one workgroup."""
        held = max(n * w for n, w in zip(shape.words(size), (shape.wide_k, shape.wide_v), strict=True))
        most = ROWS
        while most > 1 and most * held > max(MOST_HELD, held):
            most //= 2
        return min(shape.rows, most)

    def granule(self, shape: Shape, size: int) -> int:
        """Keys of a workgroup at a time."""
        return self.threads // shape.lanes(size) * self.unroll

    def stride(self, shape: Shape, size: int) -> int:
        """Floats that a piece leaves, a multiple of 4."""
        return -(-self.rows(shape, size) * (shape.width_v + 2) // 4) * 4

    def shared(self, shape: Shape, size: int) -> int:
        """Bytes of shared memory."""
        rows, lanes, (words_k, words_v) = self.rows(shape, size), shape.lanes(size), shape.words(size)
        padded, subgroups = heuristics.power_of_two_at_least(rows), self.threads // size
        filled = lanes * words_k * shape.wide_k
        kept = max(padded * words_v * shape.wide_v * lanes // size, 1)
        floats = (rows + shape.length) * filled + self.threads // lanes * (self.unroll + 1) * padded
        floats += 2 * subgroups * padded + max(subgroups * kept * (size + 1), self.pieces * rows)
        return 4 * (floats + max(subgroups * padded, self.pieces * rows) + rows + 1)

    def fits(self, info: DeviceInfo, shape: Shape) -> bool:
        """Whether the device's limits hold it."""
        limits, size = info.limits, info.limits.subgroup_size
        invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        return (
            self.threads % size == 0
            and self.threads <= invocations
            and (self.shared(shape, size) <= limits.max_shared_memory)
        )


# Pieces of a head of keys that there are at most: one workgroup puts them together in the end. On an H200 64 of them
# took longer at each of 512, 2048 and 8192 keys (heads of 64: 13.6, 19.8, 25.2 us a step, 16 of them 9.8, 11.7, 19.5).
MOST_PIECES = 16
# Workgroups wanted on a GPU, and on a CPU driver, whose workgroups cost more.
_WORKGROUPS = {"cpu": 4}
_WORKGROUPS_OF_GPU = 256
# The first that fits is taken.
_THREADS = {"cpu": ((32, 1), (16, 1), (8, 1))}
_THREADS_OF_GPU = ((256, 4), (128, 4), (128, 2), (64, 2), (64, 1), (32, 1))


def exchanges(info: DeviceInfo) -> bool:
    """Whether subgroups have one size and their lanes exchange values."""
    limits = info.limits
    fixed = limits.subgroup_size_min == limits.subgroup_size == limits.subgroup_size_max
    return fixed and limits.subgroup_size > 1 and info.features.subgroup_shuffle


def step_tile(info: DeviceInfo, shape: Shape, pairs: int, keys: int) -> StepTile | None:
    """A tile for ``pairs`` heads of ``keys`` keys; None where the device has none.

    heuristics.override(attention_step=StepTile(...)) takes that one where it fits, attention_step=False none.
    """
    forced = heuristics.forced("attention_step")
    if forced is False or shape.rows > MOST_ROWS or shape.length > MOST_QUERIES or not exchanges(info):
        return None
    size = info.limits.subgroup_size
    if forced is not None and forced.fits(info, shape):
        return forced
    common = heuristics.program_workgroup(info)
    for threads, unroll in _THREADS.get(info.kind, _THREADS_OF_GPU):
        if common not in (None, threads):
            continue
        one = StepTile(threads, unroll, 1)
        blocks = -(-shape.rows // one.rows(shape, size))
        wanted = -(-_WORKGROUPS.get(info.kind, _WORKGROUPS_OF_GPU) // (pairs * blocks))
        pieces = max(1, min(wanted, MOST_PIECES, -(-keys // one.granule(shape, size))))
        tile = StepTile(threads, unroll, pieces)
        if tile.fits(info, shape):
            return tile
    return None


def is_served(
    info: DeviceInfo, q: Sequence[int], key_cache: Sequence[int], value_cache: Sequence[int], dtype: torch.dtype
) -> bool:
    """Whether there is a kernel for operands of these sizes (see device/attention_step.py), if rows are aligned."""
    _, heads, length, width = q
    batch, groups, keys, width_v = *key_cache[:3], value_cache[3]
    if heads % groups or width % 2 or width_v % 2 or max(width, width_v) > MAX_HEAD or dtype not in DTYPES:
        return False
    wide_k, wide_v = (math.gcd(n, 16 // dtype.itemsize) for n in (width, width_v))
    shape = Shape(length * (heads // groups), length, width, width_v, wide_k, wide_v)
    return step_tile(info, shape, batch * groups, keys) is not None
