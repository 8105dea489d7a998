"""The ways to cut a matrix product: one class a template, one table of candidates each, largest first."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch._inductor.utils import ceildiv

from vkinductor.runtime.deviceinfo import DeviceInfo

from . import stream
from .problem import Problem

HALVES = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Tile:
    """``splits``: parts of the sum over k that become results of their own in float32, which another kernel adds.

    ``tflops``: with which it fills an H200 (132 units) on products of 2048 to 4096 a side, where it was measured: other
    devices have about these ratios. Products that do not depend on each other overlap there, so that a wave need not be
    full. ``edges_ns``: what a block's beginning and end take beyond that where nothing overlaps them, for its registers
    leave no room for a second one. ``computes``: whether its template takes operands that are computed while they are
    loaded. ``dtypes``: of operands that it takes; empty: all.
    """

    template: ClassVar[str]
    computes: ClassVar[bool] = False
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset()
    splits: int = dataclasses.field(default=1, kw_only=True)
    tflops: float = dataclasses.field(default=20.0, kw_only=True, compare=False, repr=False)
    edges_ns: float = dataclasses.field(default=0.0, kw_only=True, compare=False, repr=False)

    def workgroup(self, info: DeviceInfo) -> int:
        """Invocations a workgroup."""
        raise NotImplementedError

    def shared_bytes(self, element: int) -> int:
        """Bytes of shared memory a workgroup needs, with sums of ``element`` bytes."""
        return 0

    def holds(self, info: DeviceInfo, element: int) -> bool:
        """Whether the device's limits hold a workgroup, with sums of ``element`` bytes."""
        limits = info.limits
        return (
            self.workgroup(info) <= min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
            and self.shared_bytes(element) <= limits.max_shared_memory
        )

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        """Whether the kernel runs on ``info`` and computes ``problem``."""
        return self.splits == 1 and self.holds(info, problem.accumulator_bytes)

    def groups(self, batch: Any, m: Any, n: Any) -> Any:
        """Workgroups of a product (numbers or sympy expressions), those of all splits."""
        raise NotImplementedError

    def values(self, info: DeviceInfo, problem: Problem) -> dict[str, Any]:
        """What the template wants to know of the tile."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


@dataclass(frozen=True)
class DirectTile(Tile):
    """``tm`` x ``tn`` results an invocation, without tiles in shared memory; ``lanes`` invocations split k.

    ``blocks`` such groups make a workgroup.
    """

    template = "matmul_direct.glsl.jinja"
    computes = True
    tm: int
    tn: int
    lanes: int = 1
    blocks: int = 64

    def workgroup(self, info: DeviceInfo) -> int:
        return self.lanes * self.blocks

    def shared_bytes(self, element: int) -> int:
        return self.lanes * self.blocks * element if self.lanes > 1 else 0

    def groups(self, batch: Any, m: Any, n: Any) -> Any:
        return ceildiv(batch * ceildiv(m, self.tm) * ceildiv(n, self.tn), self.blocks)


@dataclass(frozen=True)
class TiledTile(Tile):
    """A workgroup computes ``bm`` x ``bn`` in steps of ``bk`` through shared memory, an invocation ``tm`` x ``tn``."""

    template = "matmul_tiled.glsl.jinja"
    computes = True
    tm: int
    tn: int
    bm: int
    bn: int
    bk: int

    def workgroup(self, info: DeviceInfo) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_bytes(self, element: int) -> int:
        return self.bk * (self.bm + self.bn + 2) * element

    def groups(self, batch: Any, m: Any, n: Any) -> Any:
        return batch * ceildiv(m, self.bm) * ceildiv(n, self.bn)


TILED = (
    TiledTile(tm=8, tn=8, bm=128, bn=128, bk=8, tflops=27.4),
    TiledTile(tm=4, tn=4, bm=64, bn=64, bk=16, tflops=23),
    TiledTile(tm=4, tn=2, bm=32, bn=32, bk=16, tflops=16.3),
)


@dataclass(frozen=True)
class BlockTile(Tile):
    """A workgroup computes ``bm`` x ``bn`` in steps of ``bk``, of which whole tiles are brought from memory.

    Blocks are counted down ``rows_together`` rows of them before the next column. The sum may be cut into ``splits``.
    ``streams``: so many workgroups share the steps of those blocks that do not make whole waves of as many, each an
    equal part, and whoever comes last adds up what a block's workgroups left (``stream``); the other blocks have a
    workgroup each. 0: all have.
    """

    # Whether the template does so.
    streaming: ClassVar[bool] = False

    bm: int
    bn: int
    bk: int
    rows_together: int = dataclasses.field(default=8, kw_only=True)
    streams: int = dataclasses.field(default=0, kw_only=True)

    def groups(self, batch: Any, m: Any, n: Any) -> Any:
        blocks = batch * ceildiv(m, self.bm) * ceildiv(n, self.bn)
        return stream.groups(blocks, self.streams) if self.streams else blocks * self.splits

    @property
    def grain(self) -> int:
        """Terms of the sum of which a workgroup takes a whole number."""
        return self.bk

    def parts_bytes(self) -> int:
        """Of memory for what workgroups leave of blocks that they share: two parts each."""
        return 2 * self.streams * self.bm * self.bn * 4

    def streams_on(self, info: DeviceInfo) -> bool:
        """Whether blocks may be shared as they are to be."""
        return not self.streams or (self.streaming and self.splits == 1)

    def values(self, info: DeviceInfo, problem: Problem) -> dict[str, Any]:
        component = COMPONENTS.get(problem.dtype, ("", ""))[1]
        more = {"component": component, "nbytes": problem.dtype.itemsize}
        whole = problem.k_is_known and problem.k % (self.splits * self.bk) == 0
        return {**super().values(info, problem), **more, "splits_whole": whole, "grain": self.grain}


# dtype of operands -> (name in CooperativeShape, GLSL type)
COMPONENTS = {
    torch.float16: ("float16", "float16_t"),
    torch.bfloat16: ("bfloat16", "bfloat16_t"),
    torch.int8: ("int8", "int8_t"),
}


@dataclass(frozen=True)
class RegisterTile(BlockTile):
    """An invocation computes ``tm`` x ``tn`` in registers on vectors of 4 floats."""

    template = "matmul_register.glsl.jinja"
    dtypes = HALVES | {torch.float32}
    computes = True
    streaming = True
    tm: int
    tn: int

    def workgroup(self, info: DeviceInfo) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_bytes(self, element: int) -> int:
        return self.bk * (self.bm // 4 + self.bn // 4 + 2) * 16

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        rows = (self.bk, self.bm, self.bn)
        return (
            problem.dtype in self.dtypes
            and self.holds(info, 4)
            and self.streams_on(info)
            and all(self.workgroup(info) % (row // 4) == 0 for row in rows)
        )


REGISTER = (
    RegisterTile(128, 128, 16, 8, 8, tflops=44.6),
    RegisterTile(128, 128, 8, 8, 8, tflops=41.2),
    RegisterTile(128, 256, 8, 8, 16, tflops=41.7),
    RegisterTile(128, 64, 16, 8, 8, tflops=41.5),
    RegisterTile(128, 64, 16, 8, 4, tflops=39),
    RegisterTile(64, 128, 16, 4, 8, tflops=38),
    RegisterTile(64, 64, 16, 8, 8, tflops=40),
    RegisterTile(64, 64, 16, 4, 4, tflops=31.7),
    RegisterTile(32, 64, 16, 4, 4, tflops=30.5),
    RegisterTile(32, 32, 16, 4, 4, tflops=27.5),
)


def described(tile: Tile) -> dict[str, Any]:
    """``tile`` as JSON knows it; ``made`` undoes it."""
    return {"kind": type(tile).__name__, **dataclasses.asdict(tile)}


def made(description: dict[str, Any], kinds: tuple[type[Tile], ...] = ()) -> Tile:
    """The tile of a description. Raises ValueError for one that this version of the package does not have."""
    values = dict(description)
    by_name = {kind.__name__: kind for kind in kinds or all_kinds()}
    try:
        return by_name[values.pop("kind", "")](**values)
    except (KeyError, TypeError):
        raise ValueError(f"no such tile: {description}") from None


def all_kinds() -> tuple[type[Tile], ...]:
    """Every class of tiles that is loaded."""
    found = [Tile]
    for kind in found:
        found += kind.__subclasses__()
    return tuple(found[1:])
