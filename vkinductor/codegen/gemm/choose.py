"""Which tile a product gets: candidates best first by rules of thumb, and the hook by which tuning decides instead."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import loop_limit
from . import integer, skinny
from .cooperative import WORKGROUP, SubgroupTile, WorkgroupTile, subgroup_tiles
from .problem import MOST_ROWS, Problem
from .tiles import REGISTER, TILED, BlockTile, DirectTile, RegisterTile, Tile, TiledTile

_Kind = TypeVar("_Kind", bound=Tile)

# What measurement chose for a problem on the open device, or None where it has not: filled in by the tuner.
tuned: Callable[[Problem], Tile | None] | None = None

_forced: contextvars.ContextVar[Tile | None] = contextvars.ContextVar("vkinductor_gemm_tile", default=None)


@contextlib.contextmanager
def forced(tile: Tile) -> Iterator[None]:
    """Every product lowered inside takes ``tile``, whatever the device and the problem (for tests and tuning).

    Graph caches do not know of it: disable them (torch._inductor.config.force_disable_caches).
    """
    token = _forced.set(tile)
    try:
        yield
    finally:
        _forced.reset(token)


def choose(info: DeviceInfo, problem: Problem) -> Tile:
    """The tile of ``problem`` on ``info``: forced, else tuned, else the best by rules."""
    tile = _forced.get()
    if tile is None and tuned is not None:
        tile = tuned(problem)
    return candidates(info, problem)[0] if tile is None else tile


def best(info: DeviceInfo, problem: Problem, kind: type[_Kind]) -> _Kind | None:
    """The likely best tile of ``kind``, or the forced one if it is of that; None where there is no such tile."""
    tile = _forced.get()
    found = candidates(info, problem) if tile is None else [tile]
    return next((t for t in found if isinstance(t, kind)), None)


def candidates(info: DeviceInfo, problem: Problem) -> list[Tile]:
    """Every tile worth trying, the likely best first; never empty, and each ``fits``."""
    found = [tile for tile in _ordered(info, problem) if tile.fits(info, problem)]
    return found or [DirectTile(tm=2, tn=2, lanes=1, blocks=64)]


def _ordered(info: DeviceInfo, problem: Problem) -> list[Tile]:
    m = problem.m
    if info.kind == "cpu":
        lanes = loop_limit.lanes(info, 1, 64, problem.k)
        blocks = max(1, 16 // lanes)
        if m == 1:
            return [DirectTile(tm=1, tn=2, lanes=lanes, blocks=blocks)]
        return [DirectTile(tm=4 if m >= 4 else m, tn=4, lanes=lanes, blocks=blocks)]
    few = skinny.candidates(info, problem)
    eight_bit = problem.dtype == torch.int8
    cooperative = integer.matrices(info) if eight_bit else [*WORKGROUP, *subgroup_tiles(info, problem.dtype)]
    if few and (m <= 8 or problem.n <= MOST_ROWS or not any(tile.fits(info, problem) for tile in cooperative)):
        return few
    # Sums of nine to sixteen rows are bound by arithmetic, unless matrix hardware does it.
    registers = integer.PACKED if eight_bit else REGISTER
    tiles = [*cooperative, *([] if few else [*registers, *TILED])]
    split = [replace(tile, splits=s) for tile in tiles for s in splits(info, problem, tile)]
    return [*sorted(split, key=lambda tile: estimate(info, problem, tile)), *few]


def splits(info: DeviceInfo, problem: Problem, tile: Tile) -> tuple[int, ...]:
    """Into how many parts the sum over k may be cut: only where there are few workgroups and a long sum."""
    if not isinstance(tile, BlockTile) or problem.batch != 1:
        return (1,)
    groups = tile.groups(1, problem.m, problem.n)
    most = min(16, problem.k // 256, 2 * compute_units(info) // max(groups, 1))
    return tuple(s for s in (1, 2, 3, 4, 6, 8, 12, 16) if s == 1 or s <= most)


def compute_units(info: DeviceInfo) -> int:
    """Workgroups that run at a time: Vulkan does not tell how many a device has, a class of devices has about these."""
    return {"discrete": _MEASURED_UNITS, "integrated": 16}.get(info.kind, 32)


# TFLOP/s with which a tile fills an H200 (132 units) on products of 2048 to 4096 a side: other devices have about these
# ratios. Products that do not depend on each other overlap there, so that a wave need not be full.
_MEASURED_UNITS = 132
_MEASURED: dict[BlockTile | TiledTile, float] = {
    WorkgroupTile(128, 256, 64): 313,
    WorkgroupTile(128, 256, 32): 299,
    WorkgroupTile(256, 128, 64): 122,
    WorkgroupTile(256, 128, 32): 271,
    WorkgroupTile(128, 128, 64): 274,
    WorkgroupTile(128, 128, 32): 185,
    WorkgroupTile(64, 128, 64): 186,
    WorkgroupTile(64, 128, 64, threads=128): 254,
    WorkgroupTile(128, 64, 64): 184,
    WorkgroupTile(64, 64, 64, threads=128): 143,
    WorkgroupTile(32, 128, 64, threads=128): 156,
    WorkgroupTile(32, 64, 64, threads=128): 125,
    SubgroupTile(128, 256, 32, 64, 64): 234,
    SubgroupTile(256, 128, 32, 64, 64): 218,
    SubgroupTile(128, 128, 32, 64, 64): 255,
    SubgroupTile(128, 128, 32, 64, 32): 190,
    SubgroupTile(128, 128, 64, 64, 64): 284,
    SubgroupTile(64, 128, 32, 32, 64): 190,
    SubgroupTile(64, 128, 64, 32, 64): 225,
    SubgroupTile(128, 64, 32, 64, 32): 185,
    SubgroupTile(64, 64, 32, 32, 32): 157,
    SubgroupTile(64, 64, 64, 32, 32): 184,
    SubgroupTile(32, 128, 32, 32, 32): 155,
    SubgroupTile(32, 64, 64, 16, 32): 134,
    SubgroupTile(16, 128, 64, 16, 32): 106,
    SubgroupTile(32, 32, 32, 16, 16): 72,
    RegisterTile(128, 128, 16, 8, 8): 44.6,
    RegisterTile(128, 128, 8, 8, 8): 41.2,
    RegisterTile(128, 256, 8, 8, 16): 41.7,
    RegisterTile(128, 64, 16, 8, 8): 41.5,
    RegisterTile(128, 64, 16, 8, 4): 39,
    RegisterTile(64, 128, 16, 4, 8): 38,
    RegisterTile(64, 64, 16, 8, 8): 40,
    RegisterTile(64, 64, 16, 4, 4): 31.7,
    RegisterTile(32, 64, 16, 4, 4): 30.5,
    RegisterTile(32, 32, 16, 4, 4): 27.5,
    TILED[0]: 27.4,
    TILED[1]: 23,
    TILED[2]: 16.3,
}
# The least part of a wave that a product takes, what a launch costs, and what cutting the sum does: one launch more
# behind a barrier, over which nothing overlaps.
_LEAST_WAVES = 0.5
_LAUNCH_NS = 3000.0
_SPLIT_NS = 30_000.0
_BYTES_A_NS = 2000.0


def estimate(info: DeviceInfo, problem: Problem, tile: Tile) -> float:
    """Nanoseconds that ``problem`` may take with ``tile``: waves of workgroups, and the parts' way through memory."""
    assert isinstance(tile, (BlockTile, TiledTile))
    known = (
        replace(tile, splits=1, shape=type(tile).shape) if isinstance(tile, SubgroupTile) else replace(tile, splits=1)
    )
    # Of the multiply-adds that a unit does in a nanosecond.
    filled = integer.rate(problem, known) if problem.dtype == torch.int8 else _MEASURED.get(known, 20.0)
    rate = filled * 500 / _MEASURED_UNITS
    waves = max(_LEAST_WAVES, tile.groups(problem.batch, problem.m, problem.n) / compute_units(info))
    time = waves * tile.bm * tile.bn * -(-problem.k // tile.splits) / rate + _LAUNCH_NS
    if tile.splits > 1:
        time += _SPLIT_NS + tile.splits * problem.m * problem.n * 8 / _BYTES_A_NS
    return float(time)
