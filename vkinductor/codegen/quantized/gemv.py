"""Products of one to sixteen rows with weights in blocks: each block is read once, by neighbours word after word.

Teams of lanes split a row of weights; what a lane has of it is a chunk (chunks.py). Sums are float32.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv
from torch._inductor.virtualized import V

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import heuristics
from ..alignment import vector_width
from ..compat import size_hint
from ..gemm.problem import MOST_ROWS
from ..template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel
from ..vectors import elements, load_type, narrowest
from . import lanes
from .chunks import chunk, function
from .formats import Packing
from .lanes import LanesTile
from .operands import address

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Sums that an invocation keeps in registers.
_MOST_SUMS = 64
# Workgroups that fill a large GPU.
_GROUPS = 256
# From so many rows of weights on: lanes of a team at most, rows of weights a team, threads a workgroup; for one row of
# x, the same with chunks of 32 weights, which take more registers, and for several.
_ONE_ROW = ((16384, 32, 4, 32), (4096, 64, 2, 128), (0, 128, 2, 128))
_ONE_ROW_WIDE = ((16384, 64, 4, 64), (0, 64, 2, 128))
_ROWS = ((4096, 16, 4, 64), (0, 32, 2, 64))


@dataclass(frozen=True)
class QuantizedTile:
    """``threads`` a workgroup in teams of ``lanes``, each for ``rows`` rows of weights.

    An invocation has ``loads`` chunks of each on their way. ``flat``, ``own``, ``direct``: against latency, as in
    gemm/skinny.py's tiles.
    """

    threads: int
    lanes: int
    rows: int
    loads: int
    flat: bool = False
    own: bool = False
    direct: bool = False

    def cluster(self, info: DeviceInfo) -> int:
        """How many neighbours add up by subgroup arithmetic; 1: all through shared memory."""
        limits, features = info.limits, info.features
        lanes = min(self.lanes, limits.subgroup_size_min)
        clustered = features.subgroup_clustered or lanes == limits.subgroup_size_max
        full = self.threads % limits.subgroup_size_max == 0
        return lanes if features.subgroup_arithmetic and clustered and full else 1

    def fits(self, info: DeviceInfo, m: int) -> bool:
        """Whether a workgroup for ``m`` rows of x is within the device's limits."""
        limits, sums = info.limits, self.rows * m
        together = self.cluster(info)
        slices = self.lanes // together if together > 1 else 1
        floats = self.threads // self.lanes * slices * sums + (self.threads if together == 1 else 0)
        invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        return self.threads <= invocations and sums <= _MOST_SUMS and 4 * floats <= limits.max_shared_memory


_forced: contextvars.ContextVar[QuantizedTile | LanesTile | None] = contextvars.ContextVar(
    "vkinductor_quantized_tile", default=None
)


@contextlib.contextmanager
def forced(tile: QuantizedTile | LanesTile) -> Iterator[None]:
    """Every product lowered inside takes ``tile`` (for tests and measurements; graph caches do not know of it)."""
    token = _forced.set(tile)
    try:
        yield
    finally:
        _forced.reset(token)


def forced_tile() -> QuantizedTile | LanesTile | None:
    """The tile that is forced here, if any."""
    return _forced.get()


def serves(x: TensorBox) -> bool:
    """Whether rows ``x`` [m, k] are few and of a dtype that these kernels have."""
    rows = x.get_size()[0]
    return x.get_dtype() in _DTYPES and V.graph.sizevars.statically_known_leq(rows, MOST_ROWS)


def tile_of(info: DeviceInfo, m: int, n: int, chunks: int, weights: int = 16) -> QuantizedTile:
    """The tile for ``m`` rows of x and ``n`` of weights of so many ``chunks`` of ``weights``."""
    # What an H200 did fastest with activations in float16, one after the other, at 2048 to 32000 rows of 2048 or 5632
    # weights; several rows of x at 5632. Few outputs: a row of weights for more lanes, and more workgroups.
    choices = _ROWS if m > 1 else _ONE_ROW if weights <= 16 else _ONE_ROW_WIDE
    most, rows, threads = next(choice for first, *choice in choices if n >= first)
    team = min(most, max(8, 1 << max(0, chunks.bit_length() - 1)))
    loads = 2 if m == 1 and team >= 64 and chunks > team else 1
    least = max(team, info.limits.subgroup_size)
    common = heuristics.program_workgroup(info)
    threads, least = (common, common) if common is not None else (max(threads, least), least)
    while threads > least and n < _GROUPS * rows * (threads // team):
        threads //= 2
    while rows > 1 and n < _GROUPS * rows * (threads // team):
        rows //= 2
    tile = QuantizedTile(threads, team, rows, loads)
    return tile if tile.fits(info, m) else QuantizedTile(32, 32, 1, 1)


def product(
    info: DeviceInfo, x: Any, weights: Any, entry: Packing, dtype: torch.dtype, tile: QuantizedTile | LanesTile | None
) -> TensorBox:
    """The template node of x [m, k] times weights [n, bytes of k] in ``dtype``; both in memory. ``tile``: None where
    sizes vary, so that nobody else has chosen one."""
    size = [x.get_size()[0], weights.get_size()[0]]
    m = size_hint(size[0])
    if not isinstance(V.graph.sizevars.simplify(size[0]), (int, sympy.Integer)):
        m = 1 << (m - 1).bit_length()
    n, weights_of = size_hint(size[1]), chunk(entry).weights
    chunks = size_hint(x.get_size()[1]) // weights_of
    tile = tile or _forced.get() or lanes.tile_of(info, m, n) or tile_of(info, m, n, chunks, weights_of)
    if isinstance(tile, LanesTile):
        plan: Any = functools.partial(lanes.plan, tile=tile, entry=entry)
    else:
        plan = functools.partial(_plan, tile=tile, entry=entry, tm=m)
    layout = FixedLayout(x.get_device(), dtype, size, FlexibleLayout.contiguous_strides(size))
    return TensorBox.create(VulkanTemplateBuffer(layout, [x, weights], plan, name="quantized_linear"))


def _plan(
    kernel: VulkanTemplateKernel, tile: QuantizedTile, entry: Packing, tm: int
) -> tuple[str, dict[str, Any], Any]:
    x, weights = kernel.inputs
    piece, info = chunk(entry), kernel.device_info
    rows, k = x.get_size()
    n = weights.get_size()[0]
    dtype = x.get_dtype()
    width = narrowest(dtype, min(piece.length, vector_width(x, 1)))
    x_address, x_stride = address(kernel, 0)
    w_address, w_stride = address(kernel, 1)
    cluster = tile.cluster(info)
    load = load_type(dtype, width)
    values = {
        "threads": tile.threads,
        "lanes": tile.lanes,
        "rows": tile.rows,
        "loads": tile.loads,
        "flat": tile.flat and width * dtype.itemsize >= 4,
        "own_loads": tile.own,
        "direct": tile.direct,
        "tm": tm,
        "m": kernel.size(rows),
        "n": kernel.size(n),
        "k": kernel.size(k),
        "cluster": cluster,
        "whole_subgroup": cluster == info.limits.subgroup_size_max,
        "load": function(entry),
        "defines": [] if dtype == torch.float32 else ["HALF_ACTIVATIONS"],
        "base": piece.base,
        "runs": piece.runs,
        "length": piece.length,
        "weights": piece.weights,
        "scales": piece.scales,
        "x_address": x_address,
        "x_stride": x_stride,
        "x_bytes": dtype.itemsize,
        "x_width": width,
        "x_type": load,
        "x_buffer": f"Buffer_{load}",
        "x_elements": lambda name: elements(dtype, width, name),
        "w_address": w_address,
        "w_stride": w_stride,
        **_passes(tile, piece.weights, k),
    }
    return "gemv_quantized.glsl.jinja", values, ceildiv(rows, tm) * ceildiv(n, tile.threads // tile.lanes * tile.rows)


def _passes(tile: QuantizedTile, weights: int, k: Any) -> dict[str, Any]:
    """How often the loop over a row goes round, and how many chunks are left then, some of them by every lane."""
    if not isinstance(k, (int, sympy.Integer)):
        return {"passes": None, "rest": 0, "rest_whole": 0}
    passes, rest = divmod(int(k) // weights, tile.lanes * tile.loads)
    return {"passes": passes, "rest": -(-rest // tile.lanes), "rest_whole": rest // tile.lanes}
