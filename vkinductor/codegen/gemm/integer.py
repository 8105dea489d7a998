"""Tiles of 8-bit integers with exact sums of 32 bits: matrix hardware, integer dot products, plain multiply-adds.

Each stages both operands with their terms side by side in memory, 16 of them a unit (templates/packed_stage.jinja).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from .cooperative import CooperativeTile, SubgroupTile, WorkgroupTile, shaped, shapes
from .problem import Problem
from .tiles import BlockTile

# The GLSL extension of dotPacked4x8EXT.
DOT_PRODUCT = "GL_EXT_integer_dot_product"

# Neighbouring terms that are brought and staged together: 16 bytes.
UNIT = 16


@dataclass(frozen=True)
class PackedTile(BlockTile):
    """An invocation computes ``tm`` x ``tn`` in registers, four products at a time if ``dot``: where the device's
    integer dot product is no slower than its parts."""

    template = "matmul_packed.glsl.jinja"
    tm: int
    tn: int
    dot: bool = field(default=True, kw_only=True)

    def workgroup(self, info: DeviceInfo) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_bytes(self, element: int) -> int:
        return staged(self.bm + self.bn, self.bk)

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        return (
            problem.dtype == torch.int8
            and (not self.dot or has_dot_product(info))
            and self.holds(info, 4)
            and self.workgroup(info) % (self.bk // UNIT) == 0
        )


@dataclass(frozen=True)
class PackedSubgroupTile(SubgroupTile):
    """As SubgroupTile, of int8."""

    template = "matmul_subgroup_packed.glsl.jinja"
    shape: tuple[int, int, int] = (16, 16, 32)

    @property
    def stage_bytes(self) -> int:
        return staged(self.bm + self.bn, self.bk)

    def shapes(self, info: DeviceInfo, dtype: torch.dtype) -> list[tuple[int, int, int]]:
        return packed_shapes(info)

    def stages(self, threads: int, problem: Problem) -> bool:
        return problem.dtype == torch.int8 and threads % (self.bk // UNIT) == 0


def packed_shapes(info: DeviceInfo) -> list[tuple[int, int, int]]:
    """(m, n, k) of the matrices of int8 that a subgroup reads in whole units, largest first. Where none is as deep as
    a unit, those of free dimensions (NV_cooperative_matrix2; Mesa's lavapipe)."""
    fixed = [shape for shape in shapes(info, torch.int8) if shape[2] % UNIT == 0]
    free = {
        (shape.m, shape.n, UNIT)
        for shape in info.cooperative_shapes
        if shape.flexible
        and not shape.saturating
        and (shape.scope, shape.a, shape.b, shape.c, shape.result) == ("subgroup", "int8", "int8", "int32", "int32")
        and shape.m % 8 == shape.n % 8 == UNIT % shape.k == 0
    }
    return fixed or sorted(free, reverse=True)


def has_dot_product(info: DeviceInfo) -> bool:
    """Whether the device multiplies four bytes with four at once, and the compiler can say so."""
    return info.features.packed_dot_product_accelerated and context.get().compiler.supports(DOT_PRODUCT)


def staged(rows: int, bk: int) -> int:
    """Bytes of shared memory for ``bk`` terms of so many rows and columns."""
    return rows * (bk // UNIT + 1) * UNIT


SUBGROUP = (
    PackedSubgroupTile(128, 256, 64, 64, 64),
    PackedSubgroupTile(256, 128, 64, 64, 64),
    PackedSubgroupTile(128, 128, 128, 64, 64),
    PackedSubgroupTile(128, 128, 64, 64, 64),
    PackedSubgroupTile(128, 128, 64, 64, 32),
    PackedSubgroupTile(64, 128, 128, 32, 64),
    PackedSubgroupTile(64, 128, 64, 32, 64),
    PackedSubgroupTile(64, 64, 128, 32, 32),
    PackedSubgroupTile(64, 64, 64, 32, 32),
    PackedSubgroupTile(32, 128, 128, 32, 32),
    PackedSubgroupTile(32, 64, 128, 16, 32),
    PackedSubgroupTile(16, 128, 128, 16, 32),
    PackedSubgroupTile(32, 32, 64, 16, 16),
)

WORKGROUP = (
    WorkgroupTile(128, 256, 128),
    WorkgroupTile(128, 256, 64),
    WorkgroupTile(256, 128, 128),
    WorkgroupTile(128, 128, 128),
    WorkgroupTile(128, 128, 64),
    WorkgroupTile(64, 128, 128, threads=128),
    WorkgroupTile(64, 64, 128, threads=128),
    WorkgroupTile(32, 128, 128, threads=128),
    WorkgroupTile(32, 64, 128, threads=128),
)

PACKED = tuple(
    replace(tile, dot=dot)
    for dot in (True, False)
    for tile in (
        PackedTile(128, 128, 64, 8, 8),
        PackedTile(128, 128, 32, 8, 8),
        PackedTile(128, 64, 64, 8, 4),
        PackedTile(64, 64, 64, 4, 4),
        PackedTile(32, 64, 64, 4, 4),
        PackedTile(32, 32, 64, 4, 4),
    )
)


def matrices(info: DeviceInfo) -> list[CooperativeTile]:
    """Tiles on matrix hardware, with the shapes that ``info`` has."""
    return [*WORKGROUP, *shaped(SUBGROUP, packed_shapes(info))]
