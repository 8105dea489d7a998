"""Tiles of the attention templates: what there is, what fits a device, what a problem takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.codegen import heuristics
from vkinductor.codegen.alignment import WIDEST, vector_width
from vkinductor.codegen.compat import size_hint
from vkinductor.runtime.deviceinfo import DeviceInfo

from .problem import Problem

# What GLSL calls halves that matrices multiply.
ELEMENTS = {torch.float16: "float16_t", torch.bfloat16: "bfloat16_t"}


@dataclass(frozen=True)
class FmaTile:
    """A workgroup of ``tr`` x ``tc`` invocations computes ``bq`` rows, ``bk`` keys at a time; q and k pass through
    shared memory in pieces of ``dc`` columns, v in pieces of ``vc`` rows."""

    bq: int
    bk: int
    dc: int
    vc: int
    tr: int
    tc: int

    def shared(self, width_v: int) -> int:
        """Bytes of shared memory."""
        row_v = -(-width_v // self.tc) * self.tc + 1
        pool = max((self.bq + self.bk) * (self.dc + 1), self.vc * row_v, self.bq * (self.tc + 1))
        return 4 * (pool + self.bq * (self.bk + 1))

    def fits(self, info: DeviceInfo, width_v: int) -> bool:
        """Whether the device's limits hold it."""
        limits = info.limits
        return (
            self.tr * self.tc <= min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
            and self.shared(width_v) <= limits.max_shared_memory
        )

    def context(self) -> dict[str, Any]:
        """What the template calls them."""
        return dataclasses.asdict(self)


# Largest first. The last fits every device: 128 invocations, 16 KiB.
FMA_TILES = (
    FmaTile(bq=64, bk=64, dc=32, vc=16, tr=16, tc=16),
    FmaTile(bq=32, bk=64, dc=32, vc=16, tr=8, tc=16),
    FmaTile(bq=16, bk=64, dc=16, vc=4, tr=8, tc=16),
    FmaTile(bq=8, bk=32, dc=16, vc=4, tr=8, tc=16),
)


@dataclass(frozen=True)
class WorkgroupTile:
    """A workgroup of ``threads`` invocations holds matrices of ``bq`` rows and ``bk`` keys; or, with ``teams``, each of
    so many subgroups its own. ``hold``: q stays, instead of being loaded for each step. ``emulated``: in shared memory,
    for tests without the extension.

    Of the forward: ``lazy``: sums are brought to a new maximum only where it grew much. ``early``: v is loaded before
    the powers are made. ``peel``: steps without a mask have a loop of their own. ``stage``: k and v pass through shared
    memory, whose subgroups (``teams``) take them from there.
    """

    bq: int
    bk: int
    threads: int
    hold: bool = True
    emulated: bool = False
    lazy: bool = False
    early: bool = False
    peel: bool = False
    teams: int = 0
    stage: bool = False

    def fits(self, info: DeviceInfo, dtype: torch.dtype, width: int, width_v: int) -> bool:
        """Whether the device multiplies such matrices, and reduces and converts them."""
        features = info.features
        if not (
            features.cooperative_matrix2
            and features.cooperative_matrix2_flexible_dimensions
            and features.cooperative_matrix2_reductions
            and features.cooperative_matrix2_conversions
            and features.cooperative_matrix2_per_element
            and features.cooperative_matrix2_tensor_addressing
            and self.threads <= info.max_cooperative_workgroup
            and self.threads in (info.limits.subgroup_size * self.teams, self.threads * (not self.teams))
        ):
            return False
        if self.stage and 4 * self.bk * (width + width_v + 16) // 2 > info.limits.max_shared_memory:
            return False
        name = str(dtype).removeprefix("torch.")
        products = ((self.bq, self.bk, padded(width)), (self.bq, self.part(width_v), self.bk))
        return any(
            shape.flexible
            and shape.scope == ("subgroup" if self.teams else "workgroup")
            and (shape.a, shape.b, shape.c, shape.result) == (name, name, "float32", "float32")
            and shape.workgroup_size in (0, self.threads)
            and all(m % shape.m == 0 and n % shape.n == 0 and k % shape.k == 0 for m, n, k in products)
            for shape in info.cooperative_shapes
        )

    def part(self, width_v: int) -> int:
        """Columns of the result that one matrix holds."""
        return self.bk if padded(width_v) % self.bk == 0 else padded(width_v)


# What measurement chose for a problem, as arguments of heuristics.override, {} where it has not: set by the tuner.
tuned: Callable[[Problem], dict[str, Any]] | None = None


def chosen(problem: Problem) -> AbstractContextManager[Any]:
    """Inside, ``problem`` takes the tile that measurement chose, unless a tile is forced."""
    forced = any(
        heuristics.forced(f"attention_{kind}") is not None for kind in ("decode", "subgroup", "workgroup", "tile")
    )
    return heuristics.override(**({} if forced or tuned is None else tuned(problem)))


def padded(width: int) -> int:
    """A head's size as matrices have it."""
    return -(-width // 16) * 16


# The first that fits and that the problem fills is taken.
WORKGROUP_TILES = (
    WorkgroupTile(bq=64, bk=64, threads=128, lazy=True, peel=True),
    WorkgroupTile(bq=128, bk=64, threads=256),
    WorkgroupTile(bq=64, bk=32, threads=128),
    WorkgroupTile(bq=32, bk=32, threads=128),
)


# Two matrices of scores and two of results, or one and two of their operands.
BACKWARD_WORKGROUP_TILES = (
    WorkgroupTile(bq=64, bk=64, threads=128),
    WorkgroupTile(bq=64, bk=64, threads=256),
    WorkgroupTile(bq=64, bk=32, threads=128),
    WorkgroupTile(bq=32, bk=32, threads=128),
)


def matrices(problem: Problem, tile: WorkgroupTile, tensors: list[Any]) -> dict[str, Any]:
    """What templates of whole-workgroup matrices call a tile, and the elements of what they read and write."""
    wide = all(vector_width(x, 3) * 2 == WIDEST for x in tensors)
    return dataclasses.asdict(tile) | {
        "teams": max(1, tile.teams),
        "lone": tile.teams == 1,
        "stage": bool(tile.stage and tile.teams and wide and problem.width % 16 == 0 and problem.width_v % 16 == 0),
        "padded": padded(problem.width),
        "padded_v": padded(problem.width_v),
        "element": ELEMENTS[problem.dtype],
        "align": WIDEST if wide else 2,
    }


def workgroup_tile(
    info: DeviceInfo,
    problem: Problem,
    tensors: Sequence[Any],
    tiles: tuple[WorkgroupTile, ...] = WORKGROUP_TILES,
    name: str = "attention_workgroup",
) -> WorkgroupTile | None:
    """A tile of whole-workgroup matrices for ``problem`` with operands ``tensors``; None where there is none for it.

    heuristics.override(name=WorkgroupTile(...)) takes that one, name=False none.
    """
    # With another last stride of a tensor's layout than 1 the values were wrong (NVIDIA's driver 580).
    contiguous = all(x.get_layout().stride[-1] == 1 for x in tensors)
    forced = heuristics.forced(name)
    if forced is not None:
        return forced if forced and (contiguous or forced.emulated) else None
    if problem.dtype not in (torch.float16, torch.bfloat16) or not contiguous:
        return None
    queries, rest = size_hint(problem.queries), size_hint(problem.batch * problem.heads)
    fitting = [t for t in tiles if t.fits(info, problem.dtype, problem.width, problem.width_v)]
    for tile in fitting:
        if queries > tile.bq // 2 and rest * -(-queries // tile.bq) >= 96:
            return tile
    return fitting[-1] if fitting else None


def _first(tiles: tuple[FmaTile, ...], info: DeviceInfo, rows: Any, rest: Any, width: int) -> FmaTile:
    """The first that fits and gives the device work, for ``rest`` times ``rows`` rows."""
    forced = heuristics.forced("attention_tile")
    fitting = [tile for tile in tiles[forced or 0 :] if tile.fits(info, width)]
    if forced is not None:
        return fitting[0]
    for tile in fitting[:-1]:
        if size_hint(rows) > tile.bq // 2 and size_hint(rest) * -(-size_hint(rows) // tile.bq) >= 64:
            return tile
    return fitting[-1]


def fma_tile(info: DeviceInfo, problem: Problem) -> FmaTile:
    """A tile for ``problem``; heuristics.override(attention_tile=...) takes one by its place in FMA_TILES,
    or the next that fits."""
    return _first(FMA_TILES, info, problem.queries, problem.batch * problem.heads, problem.width_v)


# A step over fewer keys: there are two matrices of scores.
BACKWARD_TILES = (
    FmaTile(bq=64, bk=32, dc=32, vc=16, tr=16, tc=16),
    FmaTile(bq=32, bk=32, dc=32, vc=8, tr=8, tc=16),
    FmaTile(bq=16, bk=32, dc=16, vc=4, tr=8, tc=16),
    FmaTile(bq=8, bk=32, dc=16, vc=4, tr=8, tc=16),
)


def backward_tile(info: DeviceInfo, problem: Problem) -> FmaTile:
    """As ``fma_tile``, of BACKWARD_TILES."""
    width = max(problem.width, problem.width_v)
    return _first(BACKWARD_TILES, info, problem.queries, problem.batch * problem.groups, width)
