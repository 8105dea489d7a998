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
from .tiles import BlockTile, TiledTile

# The GLSL extension of dotPacked4x8EXT.
DOT_PRODUCT = "GL_EXT_integer_dot_product"

# Neighbouring terms that are brought and staged together: 16 bytes.
UNIT = 16


@dataclass(frozen=True)
class PackedTile(BlockTile):
    """An invocation computes ``tm`` x ``tn`` in registers, four products at a time if ``dot``: where the device's
    integer dot product is no slower than its parts."""

    template = "matmul_packed.glsl.jinja"
    dtypes = frozenset({torch.int8})
    tm: int
    tn: int
    dot: bool = field(default=True, kw_only=True)

    def workgroup(self, info: DeviceInfo) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_bytes(self, element: int) -> int:
        return staged(self.bm + self.bn, self.bk)

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        return (
            problem.dtype in self.dtypes
            and (not self.dot or has_dot_product(info))
            and self.holds(info, 4)
            and self.workgroup(info) % (self.bk // UNIT) == 0
        )


@dataclass(frozen=True)
class PackedSubgroupTile(SubgroupTile):
    """As SubgroupTile, of int8."""

    template = "matmul_subgroup_packed.glsl.jinja"
    dtypes = frozenset({torch.int8})
    streaming = False
    shape: tuple[int, int, int] = (16, 16, 32)

    @property
    def stage_bytes(self) -> int:
        return staged(self.bm + self.bn, self.bk)

    def shapes(self, info: DeviceInfo, dtype: torch.dtype) -> list[tuple[int, int, int]]:
        return packed_shapes(info)

    def stages(self, threads: int, problem: Problem) -> bool:
        return problem.dtype in self.dtypes and threads % (self.bk // UNIT) == 0


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


# `tflops` is with both operands contiguous in k. What was not measured stands in the ratio of halves.
SUBGROUP = (
    PackedSubgroupTile(128, 256, 64, 64, 64, tflops=422),
    PackedSubgroupTile(256, 128, 64, 64, 64, tflops=427),
    PackedSubgroupTile(128, 128, 128, 64, 64, tflops=586),
    PackedSubgroupTile(128, 128, 64, 64, 64, tflops=460),
    PackedSubgroupTile(128, 128, 64, 64, 32, tflops=301),
    PackedSubgroupTile(64, 128, 128, 32, 64, tflops=448),
    PackedSubgroupTile(64, 128, 64, 32, 64, tflops=380),
    PackedSubgroupTile(64, 64, 128, 32, 32, tflops=370),
    PackedSubgroupTile(64, 64, 64, 32, 32, tflops=310),
    PackedSubgroupTile(32, 128, 128, 32, 32, tflops=310),
    PackedSubgroupTile(32, 64, 128, 16, 32, tflops=270),
    PackedSubgroupTile(16, 128, 128, 16, 32, tflops=210),
    PackedSubgroupTile(32, 32, 64, 16, 16, tflops=140),
)

WORKGROUP = (
    WorkgroupTile(128, 256, 128, tflops=614),
    WorkgroupTile(128, 256, 64, tflops=529),
    WorkgroupTile(256, 128, 128, tflops=229),
    WorkgroupTile(128, 128, 128, tflops=567),
    WorkgroupTile(128, 128, 64, tflops=352),
    WorkgroupTile(64, 128, 128, threads=128, tflops=483),
    WorkgroupTile(64, 64, 128, threads=128, tflops=280),
    WorkgroupTile(32, 128, 128, threads=128, tflops=300),
    WorkgroupTile(32, 64, 128, threads=128, tflops=240),
)

PACKED = tuple(
    replace(tile, dot=dot)
    for dot in (True, False)
    for tile in (
        PackedTile(128, 128, 64, 8, 8, tflops=97),
        PackedTile(128, 128, 32, 8, 8, tflops=89),
        PackedTile(128, 64, 64, 8, 4, tflops=98),
        PackedTile(64, 64, 64, 4, 4, tflops=91),
        PackedTile(32, 64, 64, 4, 4, tflops=93),
        PackedTile(32, 32, 64, 4, 4, tflops=94),
    )
)


def matrices(info: DeviceInfo) -> list[CooperativeTile]:
    """Tiles on matrix hardware, with the shapes that ``info`` has."""
    return [*WORKGROUP, *shaped(SUBGROUP, packed_shapes(info))]


# What is left of a tile's rate where an operand has its terms in rows: matrices of workgroups turn them for each
# product, the others once for each stage.
_TURNED = {WorkgroupTile: 0.38, PackedSubgroupTile: 0.75, PackedTile: 0.93}
# Of dot products, what single ones do.
_SINGLE = 0.28


def rate(problem: Problem, tile: BlockTile | TiledTile) -> float:
    """TOP/s with which ``tile`` fills an H200."""
    single = isinstance(tile, PackedTile) and not tile.dot
    turned = problem.a_contiguous == "m" or problem.b_contiguous == "n"
    return tile.tflops * (_SINGLE if single else 1.0) * (_TURNED.get(type(tile), 1.0) if turned else 1.0)
