"""How long a product takes that waits for what comes before it, and for which the next kernel waits: one in a graph of
many. Nothing fills the units that its last wave leaves idle, and none of its kernels overlaps another.

What a unit does with one workgroup and with as many as it holds at a time was measured on an H200 (132 units, driver
580, calls that wait for each other, float16, 512 rows times 2048 or 5632 columns and 2048, 2560, 5632 or 11264 rows of
weights, 256 times 4096 x 4096, 128 times 4096 x 16384): of 48 such times the model is within 10 % of 39 and within 22 %
of all; ten of them were measured after it was made. The tiles of 128 terms came later, with an epilogue of GELU and a
residual (1 us a wave of 64 x 64): 512^3, 1024^3, 256x1024x1024, 128x3072x768, 384x768x3072.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import stream
from .cooperative import SubgroupTile, WorkgroupTile
from .problem import Problem
from .tiles import BlockTile, Tile

# Past so many elements of the result what fills the last wave is no longer what matters.
MOST_ELEMENTS = 2 * 264 * 128 * 128


@dataclass(frozen=True)
class Pace:
    """Nanoseconds that a step over 64 terms takes where a unit has one workgroup, and where it has the ``most`` that
    it holds, each."""

    alone: float
    most: int
    full: float

    def step(self, workgroups: int) -> float:
        """The same for so many on a unit."""
        if workgroups <= 1 or self.most == 1:
            return self.alone
        return self.full if workgroups >= self.most else (self.alone + self.full) / 2 * workgroups / self.most


# A unit with 128 invocations alone waits for memory most of the time.
_PACES: dict[tuple[type[Tile], int, int, int, int], Pace] = {
    (WorkgroupTile, 128, 256, 64, 256): Pace(1970, 1, 1970),
    (WorkgroupTile, 128, 128, 64, 128): Pace(1140, 2, 1710),
    (WorkgroupTile, 64, 128, 64, 128): Pace(906, 3, 2260),
    (WorkgroupTile, 128, 64, 64, 128): Pace(889, 1, 889),
    (WorkgroupTile, 64, 64, 64, 128): Pace(500, 2, 760),
    (WorkgroupTile, 64, 64, 128, 128): Pace(470, 2, 720),
    (WorkgroupTile, 32, 64, 128, 128): Pace(380, 2, 600),
    (SubgroupTile, 128, 128, 64, 0): Pace(1250, 2, 1980),
}
# A launch behind a barrier; the sum of parts, whose floats are in the cache still.
_LAUNCH_NS, _SUM_NS, _PART_BYTES_A_NS = 2000.0, 5000.0, 10_000.0
# By the invocations of a workgroup's tile: until the last workgroup of a shared block has what the others left, and how
# long it takes over a part of 64 KiB. (128: six of eight times measured are within 1.5 us of this, all within 5.1.)
_JOINS = {128: (6000.0, 1250.0)}
_OTHER_JOINS = (8000.0, 3500.0)


def pace(tile: Tile) -> Pace | None:
    """What was measured of ``tile``'s blocks."""
    if not isinstance(tile, (WorkgroupTile, SubgroupTile)):
        return None
    threads = tile.threads if isinstance(tile, WorkgroupTile) else 0
    return _PACES.get((type(tile), tile.bm, tile.bn, tile.bk, threads))


def estimate(units: int, problem: Problem, tile: BlockTile) -> float | None:
    """Nanoseconds that ``problem`` takes with ``tile`` on a device of ``units`` like an H200's; None where nothing is
    known of the tile."""
    known = pace(tile)
    if known is None:
        return None
    blocks = problem.batch * -(-problem.m // tile.bm) * -(-problem.n // tile.bn)
    steps = -(-problem.k // tile.grain) * tile.grain / 64
    if tile.streams:
        piece = steps * (blocks - stream.whole(blocks, tile.streams)) / tile.streams
        rest = stream.whole(blocks, tile.streams)
        parts = stream.parts_of_a_block(blocks, tile.streams)
        join, each = _JOINS.get(getattr(tile, "threads", 0), _OTHER_JOINS)
        joined = join + parts * each * (tile.bm * tile.bn / 16384) if parts > 1 else 0.0
        return _waves(known, units, tile.streams) * piece + _waves(known, units, rest) * steps + joined + _LAUNCH_NS
    time = _waves(known, units, blocks * tile.splits) * -(-steps // tile.splits) + _LAUNCH_NS
    if tile.splits > 1:
        time += _SUM_NS + tile.splits * problem.batch * problem.m * problem.n * 8 / _PART_BYTES_A_NS
    return time


def _waves(known: Pace, units: int, workgroups: int) -> float:
    """Nanoseconds of one step of all ``workgroups``, wave after wave."""
    whole, rest = divmod(workgroups, units * known.most)
    return whole * known.full + (known.step(-(-rest // units)) if rest else 0.0)
