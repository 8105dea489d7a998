"""Which tile a product gets: candidates best first by rules of thumb, and the hook by which tuning decides instead."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import loop_limit
from . import skinny
from .problem import Problem
from .tiles import TILED, DirectTile, Tile

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
    small = [tile for tile in TILED[:-1] if tile.groups(problem.batch, m, problem.n) < 64]
    return [*(tile for tile in TILED if tile not in small), *reversed(small)]
