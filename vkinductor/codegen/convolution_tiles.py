"""Which tile a convolution that gathers its operand gets: candidates best first, and the hook of the tuner.

The tiles are those of matrices of a subgroup (``gemm.cooperative``), on which the gather is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from . import heuristics
from .gemm import choose
from .gemm import problem as gemm
from .gemm.cooperative import SubgroupTile, shapes


@dataclass(frozen=True)
class Window:
    """Where the taps of an output position lie, a number a spatial dimension."""

    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def positions(self, space: Sequence[int]) -> tuple[int, ...]:
        """Sizes of the result over an image of size ``space``."""
        rows = zip(space, self.taps, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + 2 * p - d * (t - 1) - 1) // s + 1 for n, t, s, p, d in rows)

    def __str__(self) -> str:
        """For tables and keys: k3x3 s1x1 p0x0 d1x1."""
        lists = (self.taps, self.stride, self.padding, self.dilation)
        return " ".join(f"{name}{'x'.join(map(str, values))}" for name, values in zip("kspd", lists, strict=True))


@dataclass(frozen=True)
class Problem:
    """[B, C, D...] and [O, C, K...] -> [B, O, E...] with one group. Sizes are hints where they vary; ``static``: none
    does. ``channels``: a multiple of 8, those that were added among them."""

    batch: int
    channels: int
    outputs: int
    space: tuple[int, ...]
    window: Window
    dtype: torch.dtype
    static: bool = True

    @property
    def product(self) -> gemm.Problem:
        """It as a matrix product: (b, e) x o, summed over (tap, c)."""
        rows = self.batch * prod(self.window.positions(self.space))
        terms = self.channels * prod(self.window.taps)
        return gemm.Problem(
            1, rows, self.outputs, terms, self.dtype, self.static, b_contiguous="k", a_width=8, b_width=8
        )


# What measurement chose for a problem on the open device, or None where it has not: filled in by the tuner.
tuned: Callable[[Problem], SubgroupTile | None] | None = None

# TFLOP/s of a tile that gathers, with every unit of an H200 busy on one workgroup or more.
_MEASURED = {
    SubgroupTile(128, 128, 64, 32, 64): 268,
    SubgroupTile(128, 128, 64, 64, 32): 267,
    SubgroupTile(128, 128, 64, 64, 64): 252,
    SubgroupTile(128, 64, 64, 64, 32): 199,
    SubgroupTile(128, 64, 64, 32, 32): 190,
    SubgroupTile(64, 64, 64, 32, 32): 186,
    SubgroupTile(64, 128, 64, 32, 64): 184,
    SubgroupTile(128, 64, 32, 64, 32): 167,
    SubgroupTile(64, 64, 32, 32, 32): 135,
    SubgroupTile(32, 64, 64, 16, 32): 100,
    SubgroupTile(32, 32, 32, 16, 16): 70,
}
_MEASURED_UNITS = 132
_LAUNCH_NS = 3000.0
# Adding up the parts of a sum: a launch behind a barrier, and what it moves.
_PARTS_NS = 4000.0
_BYTES_A_NS = 3000.0
_SPLITS = (1, 2, 3, 4, 6, 8)


def choose_tile(info: DeviceInfo, problem: Problem) -> SubgroupTile | None:
    """The tile of ``problem`` on ``info``: forced, else tuned, else the best by rules; None where none fits."""
    if choose.is_forced():
        return choose.best(info, problem.product, SubgroupTile)
    tile = tuned(problem) if tuned is not None else None
    return tile or next(iter(candidates(info, problem)), None)


def candidates(info: DeviceInfo, problem: Problem) -> list[SubgroupTile]:
    """Every tile worth trying, the likely best first."""
    product = problem.product
    fitting = [tile for tile in _tiles(info, problem.dtype) if tile.fits(info, product)]
    found = [replace(tile, splits=s) for tile in fitting for s in _splits(info, product, tile)]
    return sorted(found, key=lambda tile: estimate(info, problem, tile))


def _tiles(info: DeviceInfo, dtype: torch.dtype) -> Iterator[SubgroupTile]:
    """Those measured, with the largest shape of the device that divides each."""
    known = shapes(info, dtype)
    for tile in _MEASURED:
        sizes = (tile.sm, tile.sn, tile.bk)
        shape = next((s for s in known if not any(n % d for n, d in zip(sizes, s, strict=True))), None)
        if shape is not None:
            yield replace(tile, shape=shape)


def _splits(info: DeviceInfo, product: gemm.Problem, tile: SubgroupTile) -> list[int]:
    groups = tile.groups(1, product.m, product.n)
    return [
        s for s in _SPLITS if s == 1 or (product.k // s >= 256 and s * groups <= 4 * heuristics.compute_units(info))
    ]


def estimate(info: DeviceInfo, problem: Problem, tile: SubgroupTile) -> float:
    """Nanoseconds that ``problem`` may take with ``tile``: waves of workgroups, one begun counting whole, and the
    sum of the parts."""
    product, parts = problem.product, tile.splits
    tflops = _MEASURED.get(replace(tile, splits=1, shape=SubgroupTile.shape), 50)
    waves = math.ceil(tile.groups(1, product.m, product.n) / heuristics.compute_units(info))
    time = waves * tile.bm * tile.bn * -(-product.k // parts) * _MEASURED_UNITS / (500 * tflops) + _LAUNCH_NS
    if parts > 1:
        time += _PARTS_NS + parts * product.m * product.n * 8 / _BYTES_A_NS
    return float(time)
