"""Products of the same rows with several weights as one: the query, key and value projections of a prompt.

Each by itself leaves most of a device idle (256 columns of 512 rows are eight blocks of 128 x 128), and what shares the
rest of it has to be told apart and joined again. A block of the result has the columns of one weight, so that where a
workgroup's operand begins is all that differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import heuristics
from . import choose
from .cooperative import CooperativeTile
from .problem import Problem
from .tiles import BlockTile


@dataclass(frozen=True)
class SideBySide:
    """Weights [k, n] each, operands of a node in the order of their columns, as one of [k, sum of n]."""

    operands: tuple[Any, ...]

    def get_size(self) -> list[Any]:
        """As a buffer tells it."""
        k = self.operands[0].get_size()[0]
        return [k, sum((o.get_size()[1] for o in self.operands), sympy.S.Zero)]


def tile_of(info: DeviceInfo, problem: Problem, sizes: Sequence[int]) -> BlockTile | None:
    """The tile of ``problem`` whose columns are those of weights of ``sizes``: forced, else by the model; None where
    no matrices' tile has columns of one weight alone."""
    forced = choose.forced_tile()
    found = choose.candidates(info, problem) if forced is None else [forced]
    kind = CooperativeTile if forced is None else BlockTile
    for tile in found:
        if isinstance(tile, kind) and all(n % tile.bn == 0 for n in sizes):
            return tile
    return None


def serves(info: DeviceInfo, m: int, sizes: Sequence[int], k: int, dtype: torch.dtype) -> bool:
    """Whether weights of ``sizes`` columns with rows that lie as linear layers have them, are one product better: where
    some alone do not fill the device twice. (512 rows times two of 5632 x 2048 took an H200 116 us apart, 98 together,
    both with the gate's kernel.)"""
    if len(sizes) < 2 or k % 8:
        return False
    problem = Problem(1, m, sum(sizes), k, dtype, True, "k", "k", 8, 8, waits=True)
    tile = tile_of(info, problem, sizes)
    if tile is None:
        return False
    blocks = [-(-m // tile.bm) * (n // tile.bn) for n in sizes]
    return choose.is_forced() or min(blocks) < 2 * heuristics.compute_units(info)


def address(kernel: Any, weights: SideBySide, first: int, stride: str) -> str:
    """GLSL of where ``weights``, inputs of ``kernel`` from place ``first`` on, would begin if all columns were those of
    the weight that has column ``n0``; columns are ``stride`` elements apart."""
    nbytes, begin, found = weights.operands[0].get_dtype().itemsize, 0, ""
    places = []
    for place, weight in enumerate(weights.operands, first):
        back = f" - uint64_t({begin}) * uint64_t({stride}) * {nbytes}ul" if begin else ""
        begin += int(weight.get_size()[1])
        places.append((begin, f"{kernel.address(place)}{back}"))
    for end, where in reversed(places):
        found = f"(n0 < {end} ? {where} : {found})" if found else f"({where})"
    return found
