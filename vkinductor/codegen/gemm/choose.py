"""Which tile a product gets: candidates best first by rules of thumb, and the hook by which tuning decides instead."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import loop_limit
from . import skinny
from .cooperative import WORKGROUP, SubgroupTile, WorkgroupTile, subgroup_tiles
from .problem import Problem
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
    if few_rows := skinny.candidates(info, problem):
        return few_rows
    if m <= 8:
        if problem.b_contiguous == "k":
            # A row of weights is contiguous in k: lanes read along it.
            lanes = 64 if problem.k >= 256 else 16
            return [DirectTile(tm=m, tn=2, lanes=lanes, blocks=max(1, 128 // lanes))]
        return [DirectTile(tm=m, tn=1, lanes=1, blocks=128)]
    tiles = [*WORKGROUP, *subgroup_tiles(info, problem.dtype), *REGISTER, *TILED]
    split = [replace(tile, splits=s) for tile in tiles for s in splits(info, problem, tile)]
    return sorted(split, key=lambda tile: estimate(info, problem, tile))


def splits(info: DeviceInfo, problem: Problem, tile: Tile) -> tuple[int, ...]:
    """Into how many parts the sum over k may be cut: only where there are few workgroups and a long sum."""
    if not isinstance(tile, BlockTile) or problem.batch != 1:
        return (1,)
    groups = tile.groups(1, problem.m, problem.n)
    most = min(16, problem.k // 256, 2 * compute_units(info) // max(groups, 1))
    return tuple(s for s in (1, 2, 3, 4, 6, 8, 12, 16) if s == 1 or s <= most)


def compute_units(info: DeviceInfo) -> int:
    """Workgroups that run at a time: Vulkan does not tell how many a device has, a class of devices has about these."""
    return {"discrete": 128, "integrated": 16}.get(info.kind, 32)


# Of the multiply-adds that a compute unit of an H100 does in a nanosecond on a large product; leads for other devices.
_RATE = {WorkgroupTile: 1300.0, SubgroupTile: 1100.0, RegisterTile: 120.0, TiledTile: 60.0}
_BYTES_A_NS = 2000.0
_LAUNCH_NS = 3000.0


def estimate(info: DeviceInfo, problem: Problem, tile: Tile) -> float:
    """Nanoseconds that ``problem`` may take with ``tile``: waves of workgroups, and the parts' way through memory."""
    bm, bn = tile.bm, tile.bn  # type: ignore[attr-defined]
    groups = tile.groups(problem.batch, problem.m, problem.n)
    # A block of bm x bn brings bm + bn rows: the larger it is, the fewer bytes a multiply-add.
    rate = _RATE[type(tile)] * min(1.0, (bm * bn / (bm + bn) / 85.0) ** 0.5)
    waves = -(-groups // compute_units(info))
    terms = -(-problem.k // tile.splits)
    time = waves * (bm * bn * terms / rate + _LAUNCH_NS / 2)
    if tile.splits > 1:
        time += _LAUNCH_NS + tile.splits * problem.m * problem.n * 8 / _BYTES_A_NS
    return time
