"""Tiles of the attention templates: what there is, what fits a device, what a problem takes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from vkinductor.codegen import heuristics
from vkinductor.codegen.compat import size_hint
from vkinductor.runtime.deviceinfo import DeviceInfo

from .problem import Problem


@dataclass(frozen=True)
class FmaTile:
    """A workgroup of ``tr`` x ``tc`` invocations computes ``bq`` rows, ``bk`` keys at a time; q and k pass through shared
    memory in pieces of ``dc`` columns, v in pieces of ``vc`` rows."""

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


def fma_tile(info: DeviceInfo, problem: Problem) -> FmaTile:
    """A tile for ``problem``; heuristics.override(attention_tile=...) takes one by its place in FMA_TILES."""
    forced = heuristics.forced("attention_tile")
    if forced is not None:
        return FMA_TILES[forced]
    fitting = [tile for tile in FMA_TILES if tile.fits(info, problem.width_v)]
    queries, rest = size_hint(problem.queries), size_hint(problem.batch * problem.heads)
    for tile in fitting[:-1]:
        if queries > tile.bq // 2 and rest * -(-queries // tile.bq) >= 64:
            return tile
    return fitting[-1]
