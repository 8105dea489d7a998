"""Products on CPU drivers: one subgroup computes rows x columns, an operand's terms reach the others by broadcast.

Mesa's llvmpipe runs the invocations of a subgroup as the lanes of a vector. Arithmetic is cheap there, shared memory is
memory, and every load is a gather that takes 8 addresses one by one, also where all are the same (Mesa 25.0.7; a loop
over them in 22.3.6). So a load brings as much as it can: each lane other terms of a row of A, which every lane then has
by broadcast, and two neighbours of B at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor.utils import ceildiv

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import loop_limit
from ..template_kernel import VulkanTemplateKernel
from ..types import glsl_type
from .problem import Problem
from .tiles import Tile

# Multiply-adds from which the longer program is worth compiling (some 0.1 s more on lavapipe).
_LEAST_WORK = 1 << 18
# dtype -> two neighbours in memory: (storage type of both, GLSL of a vec2 from it).
PAIRS = {
    torch.float32: ("uint64_t", "uintBitsToFloat(unpack32({}))"),
    torch.float16: ("uint", "unpackHalf2x16({})"),
    torch.bfloat16: ("uint", "uintBitsToFloat(uvec2({0} << 16, {0} & 0xffff0000u))"),
}


@dataclass(frozen=True)
class BroadcastTile(Tile):
    """``tm`` rows, and ``tn`` neighbouring columns a lane of the one subgroup, of ``lanes``, that is a workgroup."""

    template = "matmul_broadcast.glsl.jinja"
    tm: int = 8
    tn: int = 4
    lanes: int = 8

    def workgroup(self, info: DeviceInfo) -> int:
        return self.lanes

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        limits = info.limits
        fixed = limits.subgroup_size_min == self.lanes == limits.subgroup_size_max
        longest = loop_limit.reach(info, 1, self.lanes, 1)
        return (
            super().fits(info, problem)
            and fixed
            and info.features.subgroup_ballot
            and glsl_type(problem.dtype).register in ("float", "int")
            and (not loop_limit.limited(info) or problem.k <= longest)
        )

    def groups(self, batch: Any, m: Any, n: Any) -> Any:
        return batch * ceildiv(m, self.tm) * ceildiv(n, self.tn * self.lanes)


def candidates(info: DeviceInfo, problem: Problem) -> list[BroadcastTile]:
    """The tile of ``problem``, where its work is worth it and columns fill the lanes."""
    work = problem.batch * problem.m * problem.n * problem.k
    if problem.n < 8 or work < _LEAST_WORK:
        return []
    lanes = info.limits.subgroup_size
    return [BroadcastTile(min(8, problem.m), 4 if problem.n > 2 * lanes else 2, lanes)]


def values(
    kernel: VulkanTemplateKernel, tile: BroadcastTile, problem: Problem, k: Any, strides: tuple[list[Any], list[Any]]
) -> dict[str, Any]:
    """What the template knows beyond sizes: where elements lie by the ``strides`` of (batch, rows, columns) of both
    operands, which loads take pairs, how K is cut."""
    info = kernel.device_info
    known = int(k) if isinstance(k, (int, sympy.Integer)) else None
    loaded, unpacked = PAIRS.get(problem.dtype, ("", ""))
    pairs_a = bool(loaded) and problem.a_contiguous == "k" and problem.a_width > 1
    step = tile.lanes * (2 if pairs_a else 1)
    if known is None and loop_limit.limited(info):
        loop_limit.require(k, loop_limit.reach(info, 1, step, 1), "a matrix product")
    a, b = ([kernel.size(s) for s in of_operand] for of_operand in strides)
    return {
        # Elements at other places than the loop's own k.
        "a_strides": a,
        "b_strides": b,
        "load_a": kernel.operand(0),
        "load_b": kernel.operand(1),
        "subgroup_size": tile.lanes,
        "step": step,
        "steps": known != 0 and (known is None or known >= step),
        "rest": known is None or known % step != 0,
        "pair": loaded,
        "unpacked": unpacked,
        "pair_bytes": 2 * problem.dtype.itemsize,
        "pairs_a": pairs_a,
        "pairs_b": problem.b_contiguous if loaded and problem.b_width > 1 and tile.tn > 1 else "",
        "address_a": kernel.address(0),
        "address_b": kernel.address(1),
    }
