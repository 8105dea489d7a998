"""Which tile a product gets: candidates best first by rules of thumb, and the hook by which tuning decides instead."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil
from typing import Any, TypeVar, cast

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.errors import UnsupportedError

from .. import loop_limit
from ..heuristics import H200_UNITS as _MEASURED_UNITS
from ..heuristics import compute_units
from . import broadcast, integer, skinny, stream, waiting
from .cooperative import WORKGROUP, CooperativeTile, WorkgroupTile, subgroup_tiles
from .problem import MOST_ROWS, Problem
from .tiles import REGISTER, TILED, BlockTile, DirectTile, Tile, TiledTile

_Kind = TypeVar("_Kind", bound=Tile)

# What measurement chose for a problem on the open device, or None where it has not: filled in by the tuner.
tuned: Callable[[Problem], Tile | None] | None = None

_forced: contextvars.ContextVar[Tile | None] = contextvars.ContextVar("vkinductor_gemm_tile", default=None)


@contextlib.contextmanager
def forced(tile: Tile) -> Iterator[None]:
    """Every product lowered inside takes ``tile``, whatever the device and the problem (for tests and tuning).

    Lowering raises UnsupportedError for a product of operands that it does not take. Graph caches do not know of
    it: disable them (torch._inductor.config.force_disable_caches).
    """
    token = _forced.set(tile)
    try:
        yield
    finally:
        _forced.reset(token)


def is_forced() -> bool:
    """Whether this is inside ``forced``."""
    return _forced.get() is not None


def _forced_on(problem: Problem) -> Tile | None:
    tile = _forced.get()
    if tile is not None and tile.dtypes and problem.dtype not in tile.dtypes:
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in tile.dtypes))
        kind = type(tile).__name__
        raise UnsupportedError(f"a {kind} is forced on a product of {problem.dtype}: it takes {names}")
    return tile


def forced_tile() -> Tile | None:
    """The tile of ``forced``."""
    return _forced.get()


def choose(info: DeviceInfo, problem: Problem) -> Tile:
    """The tile of ``problem`` on ``info``: forced, else tuned, else the best by rules."""
    tile = _forced_on(problem)
    if tile is None and tuned is not None and not problem.computed:
        tile = tuned(problem)
    return candidates(info, problem)[0] if tile is None else tile


def best(info: DeviceInfo, problem: Problem, kind: type[_Kind]) -> _Kind | None:
    """The likely best tile of ``kind``, or the forced one if it is of that; None where there is no such tile."""
    tile = _forced_on(problem)
    found = candidates(info, problem) if tile is None else [tile]
    return next((t for t in found if isinstance(t, kind)), None)


def candidates(info: DeviceInfo, problem: Problem) -> list[Tile]:
    """Every tile worth trying, the likely best first; never empty, and each ``fits``."""
    found = [tile for tile in _ordered(info, problem) if _runs(info, problem, tile)]
    return found or [DirectTile(tm=2, tn=2, lanes=1, blocks=64)]


def _runs(info: DeviceInfo, problem: Problem, tile: Tile) -> bool:
    return tile.fits(info, problem) and (tile.computes or not problem.computed)


def _ordered(info: DeviceInfo, problem: Problem) -> list[Tile]:
    m = problem.m
    if info.kind == "cpu":
        lanes = loop_limit.lanes(info, 1, 64, problem.k)
        direct = DirectTile(tm=min(m, 4), tn=4 if m > 1 else 2, lanes=lanes, blocks=max(1, 16 // lanes))
        return [direct] if problem.computed else [*broadcast.candidates(info, problem), direct]
    few = [] if problem.computed else skinny.candidates(info, problem)
    eight_bit = problem.dtype == torch.int8
    cooperative = integer.matrices(info) if eight_bit else [*WORKGROUP, *subgroup_tiles(info, problem.dtype)]
    if few and (m <= 8 or problem.n <= MOST_ROWS or not any(tile.fits(info, problem) for tile in cooperative)):
        return few
    # Sums of nine to sixteen rows are bound by arithmetic, unless matrix hardware does it.
    registers = integer.PACKED if eight_bit else REGISTER
    tiles = [*cooperative, *([] if few else [*registers, *TILED])]
    split = [replace(tile, splits=s) for tile in tiles for s in splits(info, problem, tile)]
    shared = [replace(tile, streams=s) for tile in tiles for s in streams(info, problem, tile)]
    return [*_best_first(info, problem, split, shared), *few]


def _best_first(info: DeviceInfo, problem: Problem, plain: list[Tile], shared: list[Tile]) -> list[Tile]:
    """By the model; but the first shares blocks only where that is clearly faster than the others' best on the average
    of running alone and beside work that fills the last wave, and costs little there."""

    def time(tile: Tile) -> float:
        return estimate(info, problem, tile)

    plain, shared = (sorted((t for t in tiles if _runs(info, problem, t)), key=time) for tiles in (plain, shared))
    waiting_first = _as_they_wait(info, problem, plain + shared)
    if waiting_first:
        return waiting_first
    if not plain or not shared:
        return plain + shared
    # Measured on matrices where blocks are fewer than a wave; past that it is tuning's to say.
    unshared: Any = replace(cast(BlockTile, shared[0]), streams=0)
    blocks = unshared.groups(problem.batch, problem.m, problem.n)
    if not isinstance(unshared, CooperativeTile) or blocks >= compute_units(info):
        return [plain[0], *sorted((t for t in plain + shared if t is not plain[0]), key=time)]
    usual = (time(plain[0]) + estimate(info, problem, plain[0], alone=True)) / 2
    first = shared[0] if time(shared[0]) < min(_SHARING_GAINS * usual, _SHARING_COSTS * time(plain[0])) else plain[0]
    return [first, *sorted((t for t in plain + shared if t is not first), key=time)]


def _as_they_wait(info: DeviceInfo, problem: Problem, tiles: list[Tile]) -> list[Tile]:
    """``tiles`` by the model of products between other kernels, those that it does not know last; nothing where it does
    not apply."""
    small = problem.batch * problem.m * problem.n <= waiting.MOST_ELEMENTS
    if not (problem.waits and problem.half and small and info.kind == "discrete"):
        return []
    times = {tile: waiting.estimate(compute_units(info), problem, cast(BlockTile, tile)) for tile in tiles}
    known = {tile: time for tile, time in times.items() if time is not None}
    return [*sorted(known, key=known.__getitem__), *(t for t in tiles if t not in known)] if known else []


def splits(info: DeviceInfo, problem: Problem, tile: Tile) -> tuple[int, ...]:
    """Into how many parts the sum over k may be cut: only where there are few workgroups and a long sum."""
    if not isinstance(tile, BlockTile) or problem.batch != 1:
        return (1,)
    groups = tile.groups(1, problem.m, problem.n)
    most = min(16, problem.k // 256, 2 * compute_units(info) // max(groups, 1))
    return tuple(s for s in (1, 2, 3, 4, 6, 8, 12, 16) if s == 1 or s <= most)


def streams(info: DeviceInfo, problem: Problem, tile: Tile) -> tuple[int, ...]:
    """How many workgroups may share the steps of blocks: as many as run at a time, or of those so many that a block has
    a whole number, where blocks do not fill a few waves; none has less than four steps."""
    if not isinstance(tile, BlockTile) or not tile.streaming:
        return ()
    blocks, units = tile.groups(problem.batch, problem.m, problem.n), compute_units(info)
    most = blocks * (problem.k // tile.grain) // 4
    if blocks % units == 0 or blocks > 8 * units:
        return ()
    even = units // blocks * blocks if 2 * blocks <= units else 0
    return tuple(s for s in dict.fromkeys((units, even)) if 0 < s <= most)


# The least part of a wave that a product takes, what a launch costs, and what cutting the sum does: one launch more
# behind a barrier, over which nothing overlaps.
_LEAST_WAVES = 0.5
_LAUNCH_NS = 3000.0
_SPLIT_NS = 30_000.0
_BYTES_A_NS = 2000.0


def estimate(info: DeviceInfo, problem: Problem, tile: Tile, alone: bool = False) -> float:
    """Nanoseconds that ``problem`` may take with ``tile``: waves of workgroups, and the parts' way through memory.
    ``alone``: where nothing that does not wait for it fills the last wave."""
    assert isinstance(tile, (BlockTile, TiledTile))
    # Of the multiply-adds that a unit does in a nanosecond.
    rate = (integer.rate(problem, tile) if problem.dtype == torch.int8 else tile.tflops) * 500 / _MEASURED_UNITS
    units = compute_units(info)
    if isinstance(tile, BlockTile) and tile.streams:
        return _shared(problem, tile, units, rate)
    waves = max(_LEAST_WAVES, tile.groups(problem.batch, problem.m, problem.n) / units)
    waves = ceil(waves) if alone else waves
    time = waves * (tile.bm * tile.bn * -(-problem.k // tile.splits) / rate + tile.edges_ns) + _LAUNCH_NS
    if tile.splits > 1:
        time += _SPLIT_NS + tile.splits * problem.m * problem.n * 8 / _BYTES_A_NS
    return float(time)


# On the average at least, and beside other work at most.
_SHARING_GAINS = 0.95
_SHARING_COSTS = 1.1
# What it takes until the last workgroup of a block knows that it is, and how fast one reads what the others left.
_JOIN_NS = 1000.0
_UNIT_BYTES_A_NS = 100.0


def _shared(problem: Problem, tile: BlockTile, units: int, rate: float) -> float:
    """Nanoseconds where ``tile.streams`` workgroups share blocks: equal pieces, then the last of each block alone."""
    blocks = problem.batch * -(-problem.m // tile.bm) * -(-problem.n // tile.bn)
    steps, whole = -(-problem.k // tile.grain), stream.whole(blocks, tile.streams)
    piece = -(-(blocks - whole) * steps // tile.streams)
    waves = max(1.0, tile.streams / units) * piece / steps + whole / units
    parts = stream.parts_of_a_block(blocks, tile.streams)
    joined = _JOIN_NS + (parts + 1) * tile.bm * tile.bn * 4 / _UNIT_BYTES_A_NS if parts > 1 else 0.0
    return waves * (tile.bm * tile.bn * problem.k / rate + tile.edges_ns) + joined + _LAUNCH_NS


# What the stores of a workgroup's matrix take for an operation on each element of an invocation, and how fast a kernel
# of its own streams. Code is written out for every element that an invocation has, and comes from memory as data does:
# on an H200 the code of erf took 40 us a tile of 128 elements an invocation.
_OPERATION_NS = 4.0
# The same where the result is a matrix of halves, and what is added to it comes as one: GELU of a linear layer and a
# residual took 18 us more than the layer of 4096^3 in either format, 4 to 5 us more at 2048^3. Less than a wave of
# blocks took 3 us more at 1024^3, where calls wait for each other 27 us as with a kernel of its own; where they do not
# 9.0 instead of 30.6, since then products wait for such a kernel as well. Twice as many operations (mish) took 78 us.
_WHOLE_OPERATION_NS = 0.75
_OPERATION_BEFORE_A_WAVE_NS = 1.0
# Those that a unit has of such a kernel, in one workgroup or two.
_INVOCATIONS = 256
_STREAMED_BYTES_A_NS = 4000.0


def affords(info: DeviceInfo, problem: Problem, tile: Tile, operations: int) -> bool:
    """Whether an epilogue of so many ``operations`` an element costs less in the stores of ``tile`` than by itself."""
    if not isinstance(tile, WorkgroupTile):
        return True
    waves = tile.groups(problem.batch, problem.m, problem.n) / compute_units(info)
    each = _OPERATION_NS
    if tile.leaves_as(info, problem.dtype):
        each = _WHOLE_OPERATION_NS if waves >= 1 else _OPERATION_BEFORE_A_WAVE_NS
    inside = max(1.0, waves) * (tile.bm * tile.bn // _INVOCATIONS) * operations * each
    streamed = 3 * problem.batch * problem.m * problem.n * problem.dtype.itemsize
    return inside < _LAUNCH_NS + streamed / _STREAMED_BYTES_A_NS


def chosen(info: DeviceInfo, problem: Problem) -> tuple[Tile, Callable[[int], bool] | None]:
    """`choose`, and which epilogues go with it: those it affords, or all where the tile is forced."""
    tile = choose(info, problem)
    return tile, None if _forced.get() is not None else functools.partial(affords, info, problem, tile)


# By kind of device: operations and bytes in a nanosecond, and what a kernel more costs.
_SPEED = {"cpu": (10.0, 8.0, 20_000.0), "discrete": (10_000.0, _BYTES_A_NS, _LAUNCH_NS)}
_SPEED_ELSEWHERE = (500.0, 50.0, 5000.0)


def computed_operands(info: DeviceInfo, problem: Problem) -> tuple[bool, bool]:
    """Which of the operands that ``problem`` could compute while it loads them it should; the others get kernels of
    their own. A forced tile computes what it can."""
    each = [(True, False) if o else (False,) for o in (problem.a_operations, problem.b_operations)]
    options = list(itertools.product(each[0], each[1]))
    tile = _forced.get()
    if tile is not None:
        return next(way for way in options if not any(way) or _runs(info, _computing(problem, *way), tile))
    if isinstance(candidates(info, _computing(problem, False, False))[0], skinny.SkinnyTile):
        return False, False  # bound by reading the weights, for which those tiles are
    return min(options, key=lambda way: _cost(info, problem, *way))


def _computing(problem: Problem, a: bool, b: bool) -> Problem:
    return replace(problem, a_operations=a * problem.a_operations, b_operations=b * problem.b_operations)


def _cost(info: DeviceInfo, problem: Problem, a: bool, b: bool) -> float:
    """Nanoseconds of the product and of the kernels for operands that it does not compute, as far as ways differ."""
    operations, bandwidth, launch = _SPEED.get(info.kind, _SPEED_ELSEWHERE)
    chosen = _computing(problem, a, b)
    tile: Any = candidates(info, chosen)[0]
    if isinstance(tile, (BlockTile, TiledTile)):
        known = (
            waiting.estimate(compute_units(info), chosen, tile)
            if chosen.waits and isinstance(tile, BlockTile)
            else None
        )
        time, rows, columns = estimate(info, chosen, tile) if known is None else known, tile.bm, tile.bn
    else:
        time = problem.batch * (problem.m + problem.n) * problem.k * problem.dtype.itemsize / bandwidth
        rows, columns = (tile.tm, tile.tn) if isinstance(tile, DirectTile) else (1, 1)
    for inside, each, size, blocks in (
        (a, problem.a_operations, problem.m, -(-problem.n // columns)),
        (b, problem.b_operations, problem.n, -(-problem.m // rows)),
    ):
        elements = problem.batch * problem.k * size
        if inside:
            time += elements * blocks * each / operations
        elif each:
            time += launch + 2 * elements * problem.dtype.itemsize / bandwidth
    return time
