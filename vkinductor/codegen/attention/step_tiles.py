"""How vkinductor.attention_step is cut into workgroups: tiles, what they need, and which a device takes."""

from __future__ import annotations

import dataclasses
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

    def part(self, cuts: int, size: int) -> Shape:
        """What a workgroup has that takes one of ``cuts`` equal parts of each row of v."""
        if cuts == 1:
            return self
        width_v = self.width_v // cuts
        each = 1 << max((width_v // self.lanes(size)).bit_length() - 1, 0)
        return dataclasses.replace(self, width_v=width_v, wide_v=math.gcd(min(self.wide_v, each), width_v))


@dataclass(frozen=True)
class StepTile:
    """Workgroups of ``threads``, ``pieces`` for a head of keys; a line of lanes has ``unroll`` keys on their way.

    ``rows``: queries of a subgroup at most. ``sides``: groups of subgroups with queries of their own, a power of two.
    ``solo``: up to so many keys are one piece, whatever ``pieces`` says. ``early``: the first keys are fetched before
    the position is known, where that is possible. ``ahead``: so many granules are on their way while one is used.
    ``shuffled``: of so many rows of queries at most lanes exchange scores by shuffles, of more through shared memory.
    ``lent``: a query is turned once a workgroup, for all its subgroups.
    ``cuts``: workgroups that share the elements of rows of v, each with all scores. ``fresh``: the new key is fetched
    before the position is known, and the new row of v once.
    """

    threads: int
    unroll: int
    pieces: int
    rows: int = ROWS
    sides: int = 1
    solo: int = 0
    early: bool = False
    ahead: int = 0
    shuffled: int = 2
    lent: bool = False
    cuts: int = 1
    fresh: bool = False

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
            and self._divides(shape, size)
        )

    def _divides(self, shape: Shape, size: int) -> bool:
        """Whether parts of rows of v are words that lanes load."""
        part = shape.part(self.cuts, size)
        return self.cuts == 1 or (
            shape.width_v % self.cuts == 0 and part.wide_v > 1 and part.width_v % part.wide_v == 0
        )


@dataclass(frozen=True)
class Cut:
    """Numbers of a kernel. Lanes of a subgroup: ``lanes`` (a line) read a row of k by ``words_k`` loads each, so that
    a lane has ``elements_k`` of it, ``teams`` lines there are; the same of v.

    Queries: ``rows`` a subgroup, ``padded`` to a power of two, ``all_rows`` a workgroup, ``blocks`` workgroups for all,
    each part of v its own. Of the scores of a line's rows a lane knows ``own``, the same as ``twins - 1`` others; of
    sums over a subgroup's lines it gets ``kept``, the same as ``twins_v - 1`` others. ``crews``: subgroups with equal
    queries. ``granule``: keys of a workgroup at a time. ``exchanges``: whether lanes learn of each other's rows through
    shared memory. ``step``: neighbouring elements of what a piece leaves, ``stride`` floats, that one invocation writes
    at a time. ``shares``: invocations that sum up an element of all pieces.
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
    shares: int
    shared: int


@functools.cache
def _cut(tile: StepTile, shape: Shape, size: int) -> Cut:
    shape = shape.part(tile.cuts, size)
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
    all_rows, exchanges, step = rows * sides, padded > tile.shuffled, math.gcd(shape.width_v, 4)
    shares = max(min(tile.threads * step // (all_rows * shape.width_v), tile.pieces), 1)
    floats = 2 * subgroups * padded + subgroups * kept * (size + 1) + shape.length * lanes * elements_k
    floats += subgroups * teams * (tile.unroll + 1) * padded if exchanges else 0
    floats += all_rows * lanes * elements_k if tile.lent else 0
    if tile.pieces > 1:
        floats += (tile.pieces + 1) * all_rows + 1 + (shares * all_rows * shape.width_v if shares > 1 else 0)
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
        blocks=-(-shape.rows // all_rows) * tile.cuts,
        own=own,
        twins=max(lanes // padded, 1),
        kept=kept,
        twins_v=max(teams // (padded * elements_v), 1),
        granule=subgroups // sides * teams * tile.unroll,
        exchanges=exchanges,
        step=step,
        stride=-(-all_rows * (shape.width_v + 2) // 4) * 4,
        shares=shares,
        shared=4 * floats,
    )


# Workgroups wanted on a GPU: one for each of an H200's 132 multiprocessors. Each reads keys of its own, so that more of
# them take turns and leave more to put together (llama-1.1B, 8192 keys, rows 2: 128 of them 13.0 us a step, 256 15.8,
# 512 21.6). On a CPU driver workgroups cost more than what they share.
_WORKGROUPS, _WORKGROUPS_OF_CPU = 128, 4
# Pieces of a head of keys that there are at most: one workgroup puts them together in the end.
MOST_PIECES = 32
# (threads, unroll) of workgroups in order; the first that fits is taken. The first has all keys or none.
_OF_GPU = ((512, 4), (256, 4), (128, 4), (128, 2), (64, 2), (64, 1), (32, 1))
_OF_CPU = ((32, 1), (16, 1), (8, 1))
# Workgroups that share rows of v, if they are at most half as many as multiprocessors, each of which reads more
# slowly than memory could. In the chain of a layer's dispatches, 512 keys (H200): SmolLM2-135M's 9 workgroups as 36
# took 0.8 us less, as 18 0.5; llama-1.1B's 32 as 64 0.3, as 128 nothing.
_MOST_CUTS = 4
# Threads of a workgroup with a piece: keys that are ahead take registers, of which a multiprocessor's give 256 for each
# (llama-1.1B, 8192 keys, none early: 256 threads and 4 rows 10.8 us, 512 11.1; 8 rows 11.8; none ahead 11.2 to 12.7).
_THREADS_OF_PIECES = 256
# Queries of a subgroup: one where keys are few, so that nothing need be put together (llama-1.1B, 512 keys: 5.0 us a
# step, several pieces 5.7 to 6.5); else four, fewer where that leaves too few workgroups, more where their queries'
# heads alone would make a quarter of those wanted.
_FEW, _MANY = 1, 4
# Granules of keys so far that are not worth pieces: putting them together takes longer than another granule.
_SOLO = 2


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
    if forced is not None and forced.fits(info, shape):
        return forced
    common = heuristics.program_workgroup(info)
    find = _tile_of_cpu if info.kind == "cpu" else _tile_of_gpu
    for threads, unroll in _OF_CPU if info.kind == "cpu" else _OF_GPU:
        if common not in (None, threads):
            continue
        tile = find(threads, unroll, info, shape, pairs, keys)
        if tile is not None and tile.fits(info, shape):
            return tile
    return None


def _pieces(tile: StepTile, size: int, shape: Shape, pairs: int, keys: int, workgroups: int) -> StepTile:
    """``tile`` with as many pieces as make ``workgroups``, if there are keys for them."""
    cut = tile.cut(shape, size)
    pieces = min(workgroups // (pairs * cut.blocks), MOST_PIECES, -(-keys // cut.granule))
    return dataclasses.replace(tile, pieces=max(pieces, 1))


def _tile_of_cpu(threads: int, unroll: int, info: DeviceInfo, shape: Shape, pairs: int, keys: int) -> StepTile:
    return _pieces(StepTile(threads, unroll, 1), info.limits.subgroup_size, shape, pairs, keys, _WORKGROUPS_OF_CPU)


def _tile_of_gpu(threads: int, unroll: int, info: DeviceInfo, shape: Shape, pairs: int, keys: int) -> StepTile | None:
    size = info.limits.subgroup_size
    alone = StepTile(threads, 2 * unroll, 1, rows=_FEW, early=True)
    cut = alone.cut(shape, size)
    if keys <= cut.granule and pairs * cut.blocks <= 2 * _WORKGROUPS and alone.fits(info, shape):
        return _shared_out(alone, info, shape, pairs * cut.blocks)
    if threads > _THREADS_OF_PIECES:
        return None
    rows = _MANY
    while rows < min(ROWS, shape.rows) and 4 * pairs * -(-shape.rows // (2 * rows)) >= _WORKGROUPS:
        rows *= 2
    while True:
        tile = StepTile(threads, unroll, 1, rows, early=True, ahead=1, lent=True)
        tile = _pieces(tile, size, shape, pairs, keys, _WORKGROUPS)
        cut = tile.cut(shape, size)
        if rows <= 2 or 4 * pairs * cut.blocks * tile.pieces > 3 * _WORKGROUPS:
            break
        rows //= 2
    several = keys > tile.pieces * cut.granule
    return dataclasses.replace(tile, solo=_SOLO * cut.granule) if tile.pieces > 1 and several else tile


def _shared_out(tile: StepTile, info: DeviceInfo, shape: Shape, workgroups: int) -> StepTile:
    """``tile`` with the rows of v in parts where it has few workgroups."""
    for cuts in (_MOST_CUTS, _MOST_CUTS // 2):
        cut = dataclasses.replace(tile, cuts=cuts, fresh=cuts == _MOST_CUTS)
        if cuts * workgroups <= _WORKGROUPS // 2 and cut.fits(info, shape):
            return cut
    return tile


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
