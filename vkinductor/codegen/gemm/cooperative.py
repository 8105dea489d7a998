"""Tiles of cooperative matrices.

A subgroup's are those of VK_KHR_cooperative_matrix, a workgroup's those of VK_NV_cooperative_matrix2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch._inductor.utils import ceildiv

from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.matrix_components import Sums

from ..types import glsl_type
from .problem import Problem
from .quads import Quads, quads, usual
from .tiles import COMPONENTS, HALVES, BlockTile

# NVIDIA's driver 580 unrolls a loop over k whose passes it can count. Up to 8 passes, or a multiple of 8, that is worth
# a few percent; with 10, 12, 15, 44 or 86 it made products of 2048 x 2048 2 to 3.3 times as slow (H200, 2026-11-30).
_UNROLLED = 8


def _has_component(info: DeviceInfo, dtype: torch.dtype) -> bool:
    features = info.features
    return features.vulkan_memory_model and (
        (dtype == torch.float16 and features.float16)
        or (dtype == torch.int8 and features.int8)
        or (dtype == torch.bfloat16 and features.shader_bfloat16 and features.bfloat16_cooperative_matrix)
    )


@dataclass(frozen=True)
class CooperativeTile(BlockTile):
    """Blocks of 8 or 16-bit operands with 32-bit sums. ``emulated``: by plain invocations, for tests on any device."""

    emulated: int = field(default=0, kw_only=True)

    def streams_on(self, info: DeviceInfo) -> bool:
        scope = self.emulated or info.features.vulkan_memory_model_device_scope
        return super().streams_on(info) and bool(scope or not self.streams)


@dataclass(frozen=True)
class SubgroupTile(CooperativeTile):
    """A subgroup computes ``sm`` x ``sn`` in matrices of the device's ``shape`` (m, n, k); ``emulated``: its lanes."""

    template = "matmul_subgroup.glsl.jinja"
    dtypes = HALVES
    computes = True
    streaming = True
    sm: int
    sn: int
    shape: tuple[int, int, int] = (16, 16, 16)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))

    @property
    def subgroups(self) -> int:
        """Subgroups a workgroup."""
        return self.bm // self.sm * (self.bn // self.sn)

    def lanes(self, info: DeviceInfo) -> int:
        """Invocations a subgroup."""
        return self.emulated or info.limits.subgroup_size

    def workgroup(self, info: DeviceInfo) -> int:
        return self.subgroups * self.lanes(info)

    @property
    def stage_bytes(self) -> int:
        """Of shared memory for one step of both operands, at most."""
        return (self.bm + self.bn) * (self.bk // 8 + 1) * 16

    def shapes(self, info: DeviceInfo, dtype: torch.dtype) -> list[tuple[int, int, int]]:
        """Those of the device that the template takes."""
        return shapes(info, dtype)

    def stages(self, threads: int, problem: Problem) -> bool:
        """Whether the template brings operands of the problem, in units that divide among the invocations."""
        return problem.dtype in self.dtypes and all(threads % (row // 8) == 0 for row in (self.bk, self.bm, self.bn))

    def chunk(self, info: DeviceInfo) -> int:
        """Columns of sums that a subgroup brings to shared memory at a time."""
        columns = self.sn
        while columns % (2 * self.shape[1]) == 0 and self._sums_bytes(columns) > info.limits.max_shared_memory:
            columns //= 2
        return columns

    def _sums_bytes(self, columns: int) -> int:
        return self.subgroups * self.shape[0] * (columns // 4 + 1) * 16

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        cm, cn, ck = self.shape
        threads, limits = self.workgroup(info), info.limits
        runs = self.emulated or (info.features.cooperative_matrix and _has_component(info, problem.dtype))
        return bool(
            runs
            and self.streams_on(info)
            and self.stages(threads, problem)
            and (self.emulated or self.shape in self.shapes(info, problem.dtype))
            and self.sm % cm == 0 == self.sn % cn == self.bk % ck
            and threads <= min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
            and self.subgroups <= limits.max_compute_workgroup_subgroups
            and max(self.stage_bytes, self._sums_bytes(self.chunk(info))) <= limits.max_shared_memory
        )

    def values(self, info: DeviceInfo, problem: Problem) -> dict[str, Any]:
        cm, cn, ck = self.shape
        size = {} if self.emulated else {"subgroup_size": self.lanes(info)}
        more = {"cm": cm, "cn": cn, "ck": ck, "lanes": self.lanes(info), "chunk": self.chunk(info)}
        return {**super().values(info, problem), **more, **size}


@dataclass(frozen=True)
class WorkgroupTile(CooperativeTile):
    """Matrices of a workgroup of ``threads``; ``unroll`` steps a pass. ``emulated``: 1."""

    template = "matmul_workgroup.glsl.jinja"
    dtypes = frozenset(COMPONENTS)
    streaming = True
    threads: int = 256
    unroll: int = 2

    @property
    def grain(self) -> int:
        return self.bk * self.unroll

    def streams_on(self, info: DeviceInfo) -> bool:
        # An invocation leaves its sums four at a time.
        fours = self.emulated or not self.streams or self.bm * self.bn % (4 * self.threads) == 0
        return super().streams_on(info) and bool(fours)

    def workgroup(self, info: DeviceInfo) -> int:
        return self.threads

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        if problem.dtype not in self.dtypes or not self.streams_on(info):
            return False
        if self.emulated:
            return self.holds(info, 4)
        features = info.features
        needed = (
            features.cooperative_matrix2,
            features.cooperative_matrix2_flexible_dimensions,
            features.cooperative_matrix2_tensor_addressing,
            features.cooperative_matrix2_per_element,
        )
        # With another last stride of a tensor's layout than 1 attention's values were wrong (NVIDIA's driver 580).
        rows = problem.a_contiguous and problem.b_contiguous
        return bool(
            rows
            and all(needed)
            and _has_component(info, problem.dtype)
            and self.holds(info, 4)
            and self.threads <= info.max_cooperative_workgroup
            and self._listed(info, problem.dtype, sums(problem.dtype))
        )

    def leaves_as(self, info: DeviceInfo, dtype: torch.dtype) -> str:
        """The use of the matrix of halves in which results leave: that of sums, or of an operand, of which no element
        can be brought to those of sums; "": they leave one by one."""
        if dtype not in HALVES:
            return ""
        if self.emulated:  # as NVIDIA's driver has them
            return "Accumulator" if dtype == torch.float16 else "A"
        if self._listed(info, dtype, COMPONENTS[dtype][0]):
            return "Accumulator"
        return "A" if info.features.cooperative_matrix2_conversions else ""

    def _by_quads(self, info: DeviceInfo, dtype: torch.dtype) -> Quads | None:
        """Where the components of a block lie, if its halves may leave from them."""
        sums = self.trial(info, dtype)
        if sums is None:
            return None
        return quads(usual(self.bm, self.bn, self.threads) if self.emulated else context.get().components.places(sums))

    def trial(self, info: DeviceInfo, dtype: torch.dtype) -> Sums | None:
        """The sums of which it matters where their components lie."""
        shuffles = info.features.subgroup_shuffle and info.limits.subgroup_size >= 4
        # Not what comes together from parts: that took twice as long (H200).
        if self.streams or dtype not in HALVES or not shuffles:
            return None
        return Sums(self.bm, self.bn, self.bk, self.threads, COMPONENTS[dtype][1])

    def _listed(self, info: DeviceInfo, dtype: torch.dtype, result: str) -> bool:
        """Whether the device multiplies such tiles of ``dtype`` with sums of type ``result``."""
        name = COMPONENTS[dtype][0]
        return any(
            shape.flexible
            and (shape.scope, shape.a, shape.b, shape.c, shape.result) == ("workgroup", name, name, result, result)
            and shape.workgroup_size in (0, self.threads)
            and self.bm % shape.m == 0 == self.bn % shape.n == self.bk % shape.k
            for shape in info.cooperative_shapes
        )

    def values(self, info: DeviceInfo, problem: Problem) -> dict[str, Any]:
        half_use, component = self.leaves_as(info, problem.dtype), COMPONENTS[problem.dtype][1]
        terms = ceildiv(problem.k, self.splits * self.bk) * self.bk
        whole = problem.k_is_known and problem.k == terms * self.splits and terms % self.grain == 0
        passes = (problem.k if self.splits == 1 else terms) // self.grain
        counted = problem.k_is_known and not self.streams
        return {
            **super().values(info, problem),
            "half_result": component if half_use else "",
            "half_use": half_use,
            "half_bits": self.emulated or (info.features.float16 and self._listed(info, torch.float16, "float16")),
            "half_storage": glsl_type(problem.dtype).storage,
            "quads": self._by_quads(info, problem.dtype),
            "tail": not whole,
            "rolled": counted and passes > _UNROLLED and passes % _UNROLLED != 0,
        }


def sums(dtype: torch.dtype) -> str:
    """The type of the sums of products of ``dtype``, by its name in CooperativeShape."""
    return "int32" if dtype == torch.int8 else "float32"


def shapes(info: DeviceInfo, dtype: torch.dtype) -> list[tuple[int, int, int]]:
    """(m, n, k) of the subgroup's matrices of ``dtype`` with 32-bit sums that ``info`` has, largest first."""
    name, result = COMPONENTS[dtype][0], sums(dtype)
    found = {
        (shape.m, shape.n, shape.k)
        for shape in info.cooperative_shapes
        if (shape.scope, shape.a, shape.b, shape.c, shape.result) == ("subgroup", name, name, result, result)
        and not shape.flexible
        and not shape.saturating
        and shape.m % 8 == shape.n % 8 == shape.k % 8 == 0
    }
    return sorted(found, key=lambda s: (-s[0] * s[1] * s[2], s))


_Tile = TypeVar("_Tile", bound=SubgroupTile)

# Subgroup tiles, largest first; those with 16 or 32 rows are for products that have few.
SUBGROUP = (
    SubgroupTile(128, 256, 32, 64, 64, tflops=234),
    SubgroupTile(256, 128, 32, 64, 64, tflops=218),
    SubgroupTile(128, 128, 32, 64, 64, tflops=255),
    SubgroupTile(128, 128, 32, 64, 32, tflops=190),
    SubgroupTile(128, 128, 64, 64, 64, tflops=284),
    SubgroupTile(64, 128, 32, 32, 64, tflops=190),
    SubgroupTile(64, 128, 64, 32, 64, tflops=225),
    SubgroupTile(128, 64, 32, 64, 32, tflops=185),
    SubgroupTile(64, 64, 32, 32, 32, tflops=157),
    SubgroupTile(64, 64, 64, 32, 32, tflops=184),
    SubgroupTile(32, 128, 32, 32, 32, tflops=155),
    SubgroupTile(32, 64, 64, 16, 32, tflops=134),
    SubgroupTile(16, 128, 64, 16, 32, tflops=106),
    SubgroupTile(16, 64, 128, 16, 16, tflops=100),
    SubgroupTile(16, 32, 128, 16, 16, tflops=69),
    SubgroupTile(32, 32, 32, 16, 16, tflops=72),
)

# 256 invocations are what NVIDIA's driver takes at most.
WORKGROUP = (
    WorkgroupTile(128, 256, 64, tflops=313, edges_ns=4000),
    WorkgroupTile(128, 256, 32, tflops=299, edges_ns=4000),
    WorkgroupTile(256, 128, 64, tflops=122),
    WorkgroupTile(256, 128, 32, tflops=271),
    WorkgroupTile(128, 128, 64, threads=128, tflops=345),
    WorkgroupTile(128, 128, 64, tflops=274),
    WorkgroupTile(128, 128, 32, tflops=185),
    WorkgroupTile(64, 128, 64, tflops=186),
    WorkgroupTile(64, 128, 64, threads=128, tflops=254),
    WorkgroupTile(128, 64, 64, tflops=184),
    WorkgroupTile(64, 64, 64, threads=128, tflops=143),
    WorkgroupTile(64, 64, 128, threads=128, unroll=1, tflops=153),
    WorkgroupTile(32, 128, 64, threads=128, tflops=156),
    WorkgroupTile(32, 64, 64, threads=128, tflops=125),
    WorkgroupTile(32, 64, 128, threads=128, unroll=1, tflops=121),
)


def subgroup_tiles(info: DeviceInfo, dtype: torch.dtype) -> list[SubgroupTile]:
    """SUBGROUP with the largest shape of the device that divides each."""
    if dtype not in COMPONENTS:
        return []
    return shaped(SUBGROUP, shapes(info, dtype))


def shaped(tiles: Sequence[_Tile], of_device: Sequence[tuple[int, int, int]]) -> list[_Tile]:
    """``tiles`` with the first of the device's shapes that divides each."""
    found = []
    for tile in tiles:
        fitting = [s for s in of_device if tile.sm % s[0] == 0 == tile.sn % s[1] == tile.bk % s[2]]
        found += [replace(tile, shape=shape) for shape in fitting[:1]]
    return found
