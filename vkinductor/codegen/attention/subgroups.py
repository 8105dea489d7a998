"""Tiles of attention on matrices that subgroups hold (VK_KHR_cooperative_matrix): what there is, fits and is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sympy
from torch._inductor.utils import ceildiv
from torch._inductor.virtualized import V

from vkinductor.codegen import heuristics, loop_limit
from vkinductor.codegen.alignment import WIDEST, vector_width
from vkinductor.codegen.compat import size_hint
from vkinductor.runtime.deviceinfo import DeviceInfo

from ..gemm.cooperative import shapes
from .problem import Problem
from .tiles import ELEMENTS

# Of the backward: the one whose rows are queries and the one whose rows are keys.
Kernel = Literal["forward", "queries", "keys"]


@dataclass(frozen=True)
class SubgroupTile:
    """Each of ``subgroups`` has rows of ``high`` matrices of the device's ``shape`` (m, n, k), one below the other; all
    share ``bk`` columns at a time. ``hold``: how many operands of the rows stay in registers, the others in shared
    memory. ``emulated``: lanes of a subgroup of plain invocations, for tests without such matrices."""

    subgroups: int
    bk: int
    high: int = 1
    hold: int = 2
    shape: tuple[int, int, int] = (16, 16, 16)
    emulated: int = 0

    @property
    def tall(self) -> int:
        """Rows of a subgroup."""
        return self.high * self.shape[0]

    @property
    def rows(self) -> int:
        """Of a workgroup."""
        return self.subgroups * self.tall

    def converts(self, info: DeviceInfo) -> bool:
        """Whether sums become operands, and rows their maximum, without shared memory."""
        features = info.features
        return (
            not self.emulated
            and self.shape[1] == self.shape[2]
            and features.cooperative_matrix2_conversions
            and features.cooperative_matrix2_reductions
        )

    def registers(self, info: DeviceInfo, problem: Problem, kernel: Kernel) -> int:
        """Of 32 bits, that the matrices take which live through a step."""
        widths = problem.width, problem.width_v
        sums = {"forward": widths[1] + self.bk, "queries": widths[0] + 2 * self.bk, "keys": sum(widths) + 2 * self.bk}
        held = sum(widths[: min(self.hold, 1 if kernel == "forward" else 2)]) // 2
        return self.high * self.shape[0] * (sums[kernel] + held) // (self.emulated or info.limits.subgroup_size)

    def context(self, info: DeviceInfo, problem: Problem, kernel: Kernel) -> dict[str, Any]:
        """What the templates call a tile, and where parts of shared memory begin, in units of 16 bytes."""
        cm, cn, ck = self.shape
        backward = kernel != "forward"
        converts, hold = self.converts(info), 0 if self.emulated else self.hold
        lanes = self.emulated or info.limits.subgroup_size
        pitches = problem.width // 8 + 1, problem.width_v // 8 + 1
        block, line = cm * (cn // 4 + 1), self.bk // 4 + 1
        sizes = {"c1": self.bk * pitches[0], "c2": self.bk * pitches[1]}
        if backward:
            sizes |= {"places": block, "lse": cm * line, "delta": cm * line}
        columns = sum(sizes.values())
        sizes |= {f"r{n + 1}": self.rows * pitch for n, pitch in enumerate(pitches[: 1 + backward]) if hold <= n}
        operands = cm * (self.bk // 8 + 1) * (self.high if self.emulated else 1)
        scratch = 2 * block if converts else block + max(block, operands)
        # What converts needs the scratch at the end alone, and for the mask once, when no columns are there.
        apart = not converts or (not backward and self.subgroups * scratch > columns)
        if apart:
            sizes["scratch"] = self.subgroups * scratch
        parts, used = {"r1": 0, "r2": 0, "scratch": 0}, 0
        for name, size in sizes.items():
            parts[name], used = used, used + size
        # What is held passes through the part of the columns, before there are any.
        passing = [self.rows * pitch for pitch in pitches[: min(hold, 1 + backward)]]
        return {
            "cm": cm,
            "cn": cn,
            "ck": ck,
            "bk": self.bk,
            "high": self.high,
            "hold": hold,
            "subgroups": self.subgroups,
            "lanes": lanes,
            "threads": self.subgroups * lanes,
            "converts": converts,
            "emulated": bool(self.emulated),
            "component": ELEMENTS[problem.dtype],
            "line": line,
            "scratch": scratch,
            "stage": max(used, self.subgroups * scratch, *passing, 0),
            **{f"{name}_at": at for name, at in parts.items()},
        } | ({} if self.emulated else {"subgroup_size": lanes})

    def passes(self, problem: Problem, kernel: Kernel) -> int:
        """Of an emulation's loops, at most, for a step of ``bk`` columns."""
        cm, cn, ck = self.shape
        sums, width, width_v = cm * cn // self.emulated, problem.width, problem.width_v
        over = width if kernel == "forward" else width + width_v  # what scores are sums over
        of = {"forward": width_v, "queries": width, "keys": width + width_v}[kernel]  # columns of results
        products = self.high * (over // ck * (self.bk // cn) + self.bk // ck * (of // cn))
        # Scores are begun, masked, raised, stored, rounded and loaded as well.
        return products * (sums * (ck + 2) + 4) + 16 * self.high * (self.bk // cn) * sums

    def fits(self, info: DeviceInfo, problem: Problem, kernel: Kernel) -> bool:
        """Whether the device multiplies such matrices, the tile keeps its limits, and matrices divide the widths."""
        units = max(8, *self.shape[1:])
        if problem.dtype not in ELEMENTS or any(n % units for n in (problem.width, problem.width_v, self.bk)):
            return False
        context, limits = self.context(info, problem, kernel), info.limits
        return bool(
            (self.emulated or (info.features.cooperative_matrix and self.shape in shapes(info, problem.dtype)))
            and (kernel != "keys" or context["threads"] % self.bk == 0)
            and context["threads"] <= min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
            and self.subgroups <= limits.max_compute_workgroup_subgroups
            and 16 * context["stage"] <= limits.max_shared_memory
        )


# The first that fits, leaves registers and whose workgroups the problem fills is taken, else the last that fits. More
# of the registers that a lane has (255 of NVIDIA's) spill: at head size 128 two matrices of rows took twice as long.
TILES: dict[Kernel, tuple[SubgroupTile, ...]] = {
    "forward": (
        SubgroupTile(4, 64, high=2),
        SubgroupTile(8, 64),
        SubgroupTile(4, 64),
        SubgroupTile(4, 32),
        SubgroupTile(2, 32),
    ),
    "queries": (
        SubgroupTile(4, 32, high=2, hold=1),
        SubgroupTile(4, 32),
        SubgroupTile(4, 32, hold=1),
        SubgroupTile(2, 32),
    ),
    "keys": (
        SubgroupTile(2, 32, high=2, hold=0),
        SubgroupTile(4, 64),
        SubgroupTile(4, 32, hold=1),
        SubgroupTile(2, 32),
    ),
}
MOST_REGISTERS = 200
FEWEST_WORKGROUPS = 96
# With more than 64 rows a workgroup of the forward leaves a unit waiting that has no second one: 32 heads of 512
# queries and keys, causal by a mask, took an H200 25 us with 64 rows each, 46 with 128; 13 and 20 where it is known to
# be causal.
MANY_ROWS, FEWEST_OF_MANY_ROWS = 64, 256


def fitting(info: DeviceInfo, problem: Problem, kernel: Kernel) -> list[SubgroupTile]:
    """Those of TILES that ``problem`` may take, with the largest shape of the device's that goes with one of them."""
    if problem.dtype not in ELEMENTS:
        return []
    for shape in shapes(info, problem.dtype):
        tiles = [replace(tile, shape=shape) for tile in TILES[kernel]]
        found = [
            tile
            for tile in tiles
            if tile.fits(info, problem, kernel) and tile.registers(info, problem, kernel) <= MOST_REGISTERS
        ]
        if found:
            return found
    return []


def tile_of(
    info: DeviceInfo, problem: Problem, tensors: Sequence[Any], kernel: Kernel = "forward"
) -> SubgroupTile | None:
    """A tile of ``kernel`` for ``problem`` with operands ``tensors``; None where there is none.

    heuristics.override(attention_subgroup=SubgroupTile(...)) takes that one where it fits, False none; of the backward:
    attention_subgroup_queries, attention_subgroup_keys.
    """
    # Rows are read 16 bytes at a time. What is subtracted from products is divided by the scale.
    wide = all(vector_width(x, 3) * problem.dtype.itemsize == WIDEST for x in tensors)
    if not wide or (kernel != "forward" and (sympy.sympify(problem.scale).free_symbols or problem.scale == 0)):
        return None
    forced = heuristics.forced("attention_subgroup" + (f"_{kernel}" if kernel != "forward" else ""))
    if forced is not None:
        fits = forced and forced.fits(info, problem, kernel) and _short(info, forced, problem, kernel)
        return forced if fits else None
    rows, rest = problem.queries, problem.batch * problem.heads
    if kernel == "keys":
        rows, rest = problem.keys, problem.batch * problem.groups
    count, others = size_hint(rows), size_hint(rest)
    found = fitting(info, problem, kernel)
    for tile in found:
        many = kernel == "forward" and tile.rows > MANY_ROWS
        fewest = FEWEST_OF_MANY_ROWS if many else FEWEST_WORKGROUPS
        if count > tile.rows // 2 and others * -(-count // tile.rows) >= fewest:
            return tile
    return found[-1] if found else None


def _short(info: DeviceInfo, tile: SubgroupTile, problem: Problem, kernel: Kernel) -> bool:
    """Whether a driver that ends long loops gets through those of an emulation; guarded where sizes vary."""
    if not tile.emulated or not loop_limit.limited(info):
        return True
    steps = ceildiv(problem.queries if kernel == "keys" else problem.keys, tile.bk)
    if kernel == "keys":
        steps *= problem.heads // problem.groups
    most = loop_limit.budget(info) // tile.passes(problem, kernel)
    return bool(V.graph.sizevars.guard_or_false(sympy.Le(steps, most)))
