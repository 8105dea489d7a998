"""How vkinductor.attention_step is cut into workgroups: tiles, what they need, and which a device takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vkinductor.codegen import heuristics
from vkinductor.device.attention import DTYPES, MAX_HEAD
from vkinductor.runtime.deviceinfo import DeviceInfo

# Queries of one key head that the operator's kernel is for, and that one subgroup takes at most.
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
    """Workgroups of ``threads``, ``pieces`` for a head of keys; a line of lanes has ``unroll`` keys on their way.

    ``rows``: queries of a subgroup at most. ``sides``: groups of subgroups with queries of their own, a power of two.
    ``solo``: up to so many keys are one piece, whatever ``pieces`` says. ``early``: the first keys are fetched before
    the position is known, where that is possible. ``ahead``: keys are fetched while those before them are used.
    ``shuffled``: of so many rows of queries at most lanes exchange scores by shuffles, of more through shared memory.
    """

    threads: int
    unroll: int
    pieces: int
    rows: int = ROWS
    sides: int = 1
    solo: int = 0
    early: bool = False
    ahead: bool = False
    shuffled: int = 2

    def cut(self, shape: Shape, size: int) -> Cut:
        """The tile as the kernel for ``shape`` has it, with subgroups of ``size``."""
        return _cut(self, shape, size)

    def fits(self, info: DeviceInfo, shape: Shape) -> bool:
        """Whether the device's limits hold it."""
        limits, size = info.limits, info.limits.subgroup_size
        invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        return (
            self.threads % size == 0
            and self.threads <= invocations
            and self.threads // size % self.sides == 0
            and self.cut(shape, size).shared <= limits.max_shared_memory
        )


@dataclass(frozen=True)
class Cut:
    """Numbers of a kernel. Lanes of a subgroup: ``lanes`` (a line) read a row of k by ``words_k`` loads each, so that
    a lane has ``elements_k`` of it, ``teams`` lines there are; the same of v.

    Queries: ``rows`` a subgroup, ``padded`` to a power of two, ``all_rows`` a workgroup, ``blocks`` workgroups for all.
    Of the scores of a line's rows a lane knows ``own``, the same as ``twins - 1`` others; of sums over a subgroup's
    lines it gets ``kept``, the same as ``twins_v - 1`` others. ``crews``: subgroups with the same queries. ``granule``:
    keys of a workgroup at a time. ``exchanges``: whether lanes learn of each other's rows through shared memory.
    ``step``: neighbouring elements of what a piece leaves, ``stride`` floats, that one invocation writes at a time.
    ``shared``: bytes of shared memory.
    """

    lanes: int
    teams: int
    lines: int
    words_k: int
    words_v: int
    elements_k: int
    elements_v: int
    filled_k: int
    subgroups: int
    crews: int
    sides: int
    rows: int
    padded: int
    all_rows: int
    blocks: int
    own: int
    twins: int
    kept: int
    twins_v: int
    granule: int
    exchanges: bool
    step: int
    stride: int
    shared: int


@functools.cache
def _cut(tile: StepTile, shape: Shape, size: int) -> Cut:
    lanes, (words_k, words_v) = shape.lanes(size), shape.words(size)
    elements_k, elements_v = words_k * shape.wide_k, words_v * shape.wide_v
    most = tile.rows
    while most > 1 and most * max(elements_k, elements_v) > max(MOST_HELD, elements_k, elements_v):
        most //= 2
    rows, sides = min(shape.rows, most), tile.sides
    while sides > 1 and sides // 2 * rows >= shape.rows:
        sides //= 2
    padded, teams, subgroups = heuristics.power_of_two_at_least(rows), size // lanes, tile.threads // size
    own, kept = max(padded // lanes, 1), max(padded * elements_v // teams, 1)
    all_rows, exchanges = rows * sides, padded > tile.shuffled
    floats = 2 * subgroups * padded + subgroups * kept * (size + 1) + shape.length * lanes * elements_k
    floats += subgroups * teams * (tile.unroll + 1) * padded if exchanges else 0
    floats += (tile.pieces + 1) * all_rows + 1 if tile.pieces > 1 else 0
    return Cut(
        lanes=lanes,
        teams=teams,
        lines=subgroups // sides * teams,
        words_k=words_k,
        words_v=words_v,
        elements_k=elements_k,
        elements_v=elements_v,
        filled_k=lanes * elements_k,
        subgroups=subgroups,
        crews=subgroups // sides,
        sides=sides,
        rows=rows,
        padded=padded,
        all_rows=all_rows,
        blocks=-(-shape.rows // all_rows),
        own=own,
        twins=max(lanes // padded, 1),
        kept=kept,
        twins_v=max(teams // (padded * elements_v), 1),
        granule=subgroups // sides * teams * tile.unroll,
        exchanges=exchanges,
        step=math.gcd(shape.width_v, 4),
        stride=-(-all_rows * (shape.width_v + 2) // 4) * 4,
        shared=4 * floats,
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
        one = StepTile(threads, unroll, 1).cut(shape, size)
        wanted = -(-_WORKGROUPS.get(info.kind, _WORKGROUPS_OF_GPU) // (pairs * one.blocks))
        pieces = max(1, min(wanted, MOST_PIECES, -(-keys // one.granule)))
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
