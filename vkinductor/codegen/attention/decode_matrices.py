"""Few queries of halves against many keys on cooperative matrices of one subgroup: tiles and their plan.

All queries of a head of keys are rows or columns of one matrix: plain FMA would convert and multiply each key once for
each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.codegen import heuristics
from vkinductor.codegen.gemm.cooperative import shapes
from vkinductor.codegen.template_kernel import HALVES
from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.drivers import driver_of

from .problem import Problem

# Rows, columns and terms of the matrices, of which NVIDIA, AMD and Intel have the first.
SHAPE = (16, 16, 16)
# Those of NVIDIA whose columns are as many queries as most models have: half the registers for scores and results.
TURNED = (16, 8, 16)
COMPONENTS = {torch.float16: "float16_t", torch.bfloat16: "bfloat16_t"}


@dataclass(frozen=True)
class MatrixTile:
    """A workgroup of ``subgroups`` takes one of the pieces of ``chunk`` keys, each subgroup ``block`` at a time.
    ``emulated``: by so many plain invocations a subgroup, for tests. ``turned``: queries are columns of matrices."""

    subgroups: int
    block: int
    chunk: int
    emulated: int = 0
    turned: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the matrices."""
        return TURNED if self.turned else SHAPE

    @property
    def slots(self) -> int:
        """Queries that a matrix has room for."""
        return self.shape[1 if self.turned else 0]

    def lanes(self, info: DeviceInfo) -> int:
        """Invocations a subgroup."""
        return self.emulated or info.limits.subgroup_size

    def rows(self, info: DeviceInfo, total: int) -> int:
        """Queries that a workgroup takes of ``total``: each has a lane for its scores."""
        return min(total, self.slots, self.lanes(info))

    def part(self, width_v: int) -> int:
        """Columns of the result that subgroups put together at a time: what lies where a block of keys did."""
        return width_v if self.block >= 2 * SHAPE[0] or width_v % 32 else width_v // 2

    def shared(self, width: int, width_v: int) -> int:
        """Bytes of shared memory."""
        rows = self.slots
        block = max(self.block * (max(width, width_v) // 8 + 1), rows * (self.part(width_v) // 4 + 1))
        own = block + rows * (self.block // 4 + 1 + self.block // 8 + 1)
        return 16 * (self.subgroups * own + rows * (width // 8 + 1)) + 12 * self.subgroups * rows

    def fits(self, info: DeviceInfo, dtype: torch.dtype, width: int, width_v: int) -> bool:
        """Whether the device multiplies such matrices, and its limits hold the tile."""
        limits, features, lanes = info.limits, info.features, self.lanes(info)
        fixed = limits.subgroup_size_min == limits.subgroup_size == limits.subgroup_size_max
        return (
            dtype in HALVES
            and (bool(self.emulated) or (features.cooperative_matrix and self.shape in shapes(info, dtype)))
            and fixed
            and features.subgroup_shuffle
            and features.subgroup_vote
            and lanes <= limits.subgroup_size
            and width % SHAPE[0] == width_v % SHAPE[0] == 0
            and self.block * min(width, width_v) // 8 % lanes == 0
            and self.subgroups * lanes <= min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
            and self.shared(width, width_v) <= limits.max_shared_memory
        )

    def context(self, info: DeviceInfo, problem: Problem, rows: int) -> dict[str, Any]:
        """What the template calls it, for workgroups of ``rows`` queries."""
        lanes = self.lanes(info)
        # Of a block's scores a lane has neighbouring keys of one query, an even number.
        padded = max(heuristics.power_of_two_at_least(rows), 2 * lanes // self.block)
        size = {} if self.emulated else {"subgroup_size": lanes}
        return size | {
            "subgroups": self.subgroups,
            "lanes": lanes,
            "kb": self.block,
            "chunk": self.chunk,
            "emulated": self.emulated,
            "wait": "subgroupMemoryBarrierShared" if driver_of(info).joins_subgroups else "subgroupBarrier",
            "device_exp2": heuristics.device_exp2(info),
            "padded": padded,
            "part": self.part(problem.width_v),
            "masks": distances(1, lanes // padded),
            "all_masks": distances(1, lanes),
            "turned": self.turned,
            "slots": self.slots,
            "component": COMPONENTS[problem.dtype],
            **dict(zip(("cm", "cn", "ck"), self.shape, strict=True)),
        }


def distances(least: int, most: int) -> list[int]:
    """Powers of two from ``most`` / 2 down to ``least``: lanes that exchange values step by step."""
    return [1 << i for i in range(most.bit_length() - 2, least.bit_length() - 2, -1)]
