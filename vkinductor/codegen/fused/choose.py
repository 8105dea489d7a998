"""Which kernel linear layers of few rows get, and its tile: what is forced, what was measured, or rules of thumb.

The kernels: teams of lanes that read x from memory (FusedTile; QuantizedTile where a weight in blocks is alone), x in
shared memory (StagedTile), and a lane a row of weights on CPU drivers (LanesTile).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log2

import torch

from vkinductor.device.fused_linear import DENSE
from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import heuristics
from ..quantized import gemv, lanes, staged
from ..quantized.gemv import QuantizedTile
from ..quantized.lanes import LanesTile
from ..quantized.problem import Problem
from ..quantized.staged import StagedTile
from . import tiles
from .tiles import FusedTile

Tile = FusedTile | QuantizedTile | StagedTile | LanesTile

# Rows of x from which on nothing is chosen by measurement.
MOST_TUNED_ROWS = 16
# Loads of a row that are all on their way at once; rows times loads of a lane.
_MOST_LOADS, _MOST_CHUNKS = 12, 8
# Near what tiles are where x waits in shared memory though the rules do not say so.
_USUAL = StagedTile(128, 32, 2, False, False)


@dataclass(frozen=True)
class Layers:
    """``problem`` with x of ``dtype``, ``m`` rows of it (a likely number unless ``static``).

    ``chunks``: of a row of weights, the fewest. ``alone``: vkinductor.quantized_linear, which has kernels of its own.
    ``bytes``: x becomes bytes where it meets blocks, if there is a kernel.
    """

    problem: Problem
    dtype: torch.dtype
    m: int
    static: bool
    chunks: int
    alone: bool = False
    bytes: bool = False

    @property
    def n(self) -> int:
        """Rows of all weights."""
        return sum(self.problem.sizes)

    @property
    def rows(self) -> int:
        """Of x, that a workgroup has at once."""
        m = self.m if self.static else 1 << (self.m - 1).bit_length()
        return m if self.alone else min(tiles.MOST_ROWS, m)

    @property
    def rows_staged(self) -> int:
        """The same where x waits in shared memory."""
        return max(1, min(self.rows, staged.MOST_ROWS))


@dataclass(frozen=True)
class Table:
    """What tuning tries on a class of devices, besides the rules. ``most``: candidates of a problem."""

    threads: tuple[int, ...]
    lanes: tuple[int, ...]
    rows: tuple[int, ...]
    loads: tuple[int, ...]
    most: int


# By whether the device is a processor.
TABLES = {
    False: Table((64, 128, 256), (8, 16, 32, 64, 128, 256), (1, 2, 4, 8), (1, 2, 4), 48),
    True: Table((8, 32, 64), (8, 16, 32, 64), (1, 2, 4), (1, 2), 12),
}


def _not_tuned(layers: Layers) -> Tile | None:
    return None


# What measurements say; None: nothing. Set by codegen/tuning.
tuned: Callable[[Layers], Tile | None] = _not_tuned


def chosen(info: DeviceInfo, layers: Layers) -> Tile:
    """The tile of ``layers``."""
    tile = _forced(info, layers)
    if tile is None and _is_tuned(info, layers):
        tile = tuned(layers)
    return by_rules(info, layers) if tile is None else tile


def _is_tuned(info: DeviceInfo, layers: Layers) -> bool:
    """All kernels of a persistent program have one workgroup, and those of a chained one are there before it is their
    turn, which no measurement of one alone shows; rows of weights with gaps are rare."""
    alone = heuristics.program_workgroup(info) is None and not heuristics.dispatches_wait(info)
    return alone and layers.m <= MOST_TUNED_ROWS and layers.problem.lies_plain


def _forced(info: DeviceInfo, layers: Layers) -> Tile | None:
    own = gemv.forced_tile() if layers.alone else tiles.forced_tile()
    if own is not None:
        return own
    tile = staged.forced_tile()
    return tile if tile is not None and _stages(info, layers, tile) else None


def _stages(info: DeviceInfo, layers: Layers, tile: StagedTile) -> bool:
    return staged.serves(info, layers.dtype, layers.problem, layers.rows_staged, tile)


def by_rules(info: DeviceInfo, layers: Layers) -> Tile:
    """The tile that rules of thumb choose."""
    problem = layers.problem
    tile = staged.tile_of(info, problem, layers.rows_staged, layers.bytes)
    if tile is not None and _stages(info, layers, tile):
        return tile
    few = lanes.tile_of(info, layers.rows, layers.n) if layers.alone else None
    return few or _team_by_rules(info, layers)


def _team_by_rules(info: DeviceInfo, layers: Layers) -> QuantizedTile:
    problem = layers.problem
    if layers.alone:
        return gemv.tile_of(info, layers.rows, layers.n, layers.chunks, problem.k // layers.chunks)
    dense = all(number == DENSE for number in problem.formats)
    return tiles.tile_of(info, layers.rows, problem.sizes, layers.chunks, bool(problem.gate), dense)


def candidates(info: DeviceInfo, layers: Layers) -> list[Tile]:
    """Tiles that the device has and that compute ``layers``: that of the rules, then others, its nearest first."""
    first, table = by_rules(info, layers), TABLES[info.kind == "cpu"]
    as_bytes = rounds_to_bytes(first)
    found: dict[Tile, None] = dict.fromkeys(_staged(info, layers, table, as_bytes))
    if not as_bytes:
        found |= dict.fromkeys(_teams(info, layers, table))
        if isinstance(first, LanesTile):
            found |= dict.fromkeys(LanesTile(first.lanes, rows, first.tm) for rows in table.rows)
    found.pop(first, None)
    return [first, *sorted(found, key=_estimates(info, layers, first))[: table.most - 1]]


def rounds_to_bytes(tile: Tile) -> bool:
    """Whether x becomes bytes there: another result than that of kernels where it stays what it is."""
    return isinstance(tile, StagedTile) and tile.bytes


def estimate(info: DeviceInfo, layers: Layers, tile: Tile) -> float:
    """Comparable among candidates: what is far from the rules' choice is likely slower, and what is another kernel is
    near where the rules' tile of that is. All read the same bytes."""
    return _estimates(info, layers, by_rules(info, layers))(tile)


def _estimates(info: DeviceInfo, layers: Layers, first: Tile) -> Callable[[Tile], float]:
    team = _team_by_rules(info, layers)

    def of(tile: Tile) -> float:
        if type(first) is type(tile):
            return 1.0 + 0.1 * _distance(first, tile)
        return 1.1 + 0.1 * _distance(_USUAL if isinstance(tile, StagedTile) else team, tile)

    return of


def _distance(one: Tile, other: Tile) -> float:
    """Between tiles of one kernel; of lanes there is one in each direction."""
    names = [name for name in ("threads", "lanes", "rows", "loads") if hasattr(one, name)]
    factors = (getattr(one, name) / getattr(other, name) for name in names)
    flags = [name for name in ("flat", "direct", "staged", "own") if hasattr(one, name)]
    changed = sum(getattr(one, name) != getattr(other, name) for name in flags)
    turns = bool(getattr(one, "turns", 0)) != bool(getattr(other, "turns", 0))
    return sum(abs(log2(factor)) for factor in factors) + 0.5 * (changed + turns)


def _teams(info: DeviceInfo, layers: Layers, table: Table) -> Iterator[QuantizedTile]:
    """Those that read x from memory, and fit."""
    own = info.kind != "cpu" and layers.m < 4
    kind = QuantizedTile if layers.alone else FusedTile
    for threads in table.threads:
        for team in table.lanes:
            if team > threads:
                continue
            for rows in table.rows:
                if rows > 1 and threads // team * rows > max(layers.problem.sizes):
                    continue
                for loads in table.loads:
                    tile = kind(threads, team, rows, loads, own=own)
                    short = team * loads <= max(2 * layers.chunks, table.lanes[0])
                    if rows * loads <= _MOST_CHUNKS and short and _fits(info, layers, tile):
                        yield tile
                # Whole rows of weights on their way.
                loads = -(-layers.chunks // team)
                tile = kind(threads, team, rows, loads, True, True, team <= info.limits.subgroup_size_min)
                if own and rows * loads <= _MOST_LOADS and _fits(info, layers, tile):
                    yield tile


def _fits(info: DeviceInfo, layers: Layers, tile: QuantizedTile) -> bool:
    if isinstance(tile, FusedTile):
        return tile.holds(info, layers.rows, bool(layers.problem.gate))
    return tile.fits(info, layers.rows)


def _staged(info: DeviceInfo, layers: Layers, table: Table, as_bytes: bool) -> Iterator[StagedTile]:
    """Those with x in shared memory, as bytes or not; on cards."""
    if info.kind == "cpu":
        return
    subgroup = info.limits.subgroup_size_min
    ways = (False, True) if len(set(layers.problem.formats)) == 1 else (False,)
    for threads in table.threads:
        for team in table.lanes:
            for rows in table.rows:
                for is_staged in ways:
                    tile = StagedTile(threads, team, rows, is_staged, as_bytes)
                    if subgroup <= team <= threads and _stages(info, layers, tile):
                        yield tile
