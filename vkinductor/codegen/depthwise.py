"""Depthwise convolutions: every channel with a kernel of its own, so there is no product to make a matrix of.

An invocation computes neighbours along the last dimension of the image; with channels last it does so for as many
channels as one load takes, and a workgroup keeps the kernels of its channels in shared memory. The result lies as x
does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv, sympy_product
from torch._inductor.virtualized import V

from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from .alignment import vector_width
from .compat import size_hint
from .convolution_products import settled
from .convolution_tiles import Window
from .heuristics import FEWEST_INVOCATIONS, convolution_products, forced
from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out
from .vectors import elements, load_type

aten = torch.ops.aten

# Channels first: invocations a workgroup. Values of x that one keeps in registers.
_WORKGROUP, _MOST_VALUES = 128, 136
# Channels last: invocations along the channels and of a workgroup that tuning tries, beside the rules'; how many tiles
# it does at most; and values of x and results that leave an invocation's registers alone.
_LANES, _THREADS, _MOST_TILES, _MANY_VALUES = (2, 4, 8), (64, 128, 256), 24, 96


@dataclass(frozen=True)
class LastTile:
    """With channels last: ``at_once`` neighbours an invocation, ``lanes`` loads of channels by ``places`` blocks of
    neighbours a workgroup; ``unrolled``: the most rows of a kernel that make no loop."""

    at_once: int
    lanes: int
    places: int
    unrolled: int = 1

    def fits(self, info: DeviceInfo, window: Window, width: int) -> bool:
        """Whether the device's limits and the registers hold a workgroup whose loads take ``width`` channels."""
        pitch = self.lanes * width + 4
        return (
            columns(window, self.at_once) * width <= _MOST_VALUES
            and self.lanes * self.places
            <= min(info.limits.max_workgroup_invocations, info.limits.max_workgroup_size[0])
            and prod(window.taps) * pitch * 4 <= min(info.limits.max_shared_memory, 32 << 10)
        )


def last_tiles(channels: int, width: int) -> list[LastTile]:
    """Tiles for an image of ``channels`` that are loaded ``width`` at a time, best first where outputs are few."""
    loads = -(-channels // width)
    # Lanes that leave none idle, if there are; neighbouring ones read neighbouring memory.
    lanes = next((n for n in range(16, 3, -1) if loads % n == 0), min(8, loads))
    return [LastTile(n, each, 128 // each) for each in (lanes, 4, 1) for n in (4, 2, 1) if each <= lanes]


# Where so many invocations have eight outputs each, those of four lanes side by side were faster on an H200 than four
# outputs each of up to sixteen lanes, for each of ten layers of MobileNetV2 and ConvNeXt in halves: 384 channels at
# 14x14 with a kernel of 7 take 18 us instead of 41, 144 at 56x56 with one of 3 take 30 instead of 39. The fewest
# were 21504.
_OF_EIGHT, _FEWEST_OF_EIGHT = LastTile(8, 4, 32), 1 << 14


# Neighbours an invocation with channels first, best first.
_AT_ONCE = (8, 4, 2, 1)


@dataclass(frozen=True)
class Problem:
    """A convolution of ``batch`` images of ``channels`` and ``space`` elements in ``dtype``, with channels ``last`` or
    not; ``width``: channels that one load takes. ``static``: whether no size varies (else they are likely ones)."""

    batch: int
    channels: int
    space: tuple[int, ...]
    window: Window
    dtype: torch.dtype
    last: bool
    width: int
    static: bool = True


# What measurement chose for a problem on the open device, or None where it has not: filled in by the tuner.
tuned: Callable[[Problem], LastTile | int | None] | None = None


def tile_by_rules(info: DeviceInfo, problem: Problem) -> LastTile | int | None:
    """The best tile by rules of thumb; None where none fits."""
    window, width = problem.window, problem.width
    if not problem.last:
        return next((n for n in _AT_ONCE if columns(window, n) <= _MOST_VALUES), None)
    loads = -(-problem.channels // width)
    blocks = problem.batch * prod(problem.space[:-1]) * -(-problem.space[-1] // _OF_EIGHT.at_once)
    # Of which most are there.
    filled = problem.space[-1] > _OF_EIGHT.at_once // 2 and loads >= _OF_EIGHT.lanes
    eight = filled and problem.dtype.itemsize == 2 and blocks * loads >= _FEWEST_OF_EIGHT
    return next(
        (t for t in [*[_OF_EIGHT] * eight, *last_tiles(problem.channels, width)] if t.fits(info, window, width)), None
    )


def candidates(info: DeviceInfo, problem: Problem) -> list[LastTile | int]:
    """Tiles worth trying, the choice by rules first, then the likely best. Nothing where the rules find none."""
    window, width, first = problem.window, problem.width, tile_by_rules(info, problem)
    if first is None:
        return []
    if not problem.last:
        return [first, *(n for n in _AT_ONCE if n != first and columns(window, n) <= _MOST_VALUES)]
    loads = -(-problem.channels // width)
    lanes = sorted({n for n in (*_LANES, getattr(first, "lanes", 1)) if n <= loads})
    whole = prod(window.taps[:-1])
    tiles = [
        LastTile(at_once, each, threads // each, unrolled)
        for each in lanes
        for threads in _THREADS
        for at_once in _AT_ONCE
        for unrolled in dict.fromkeys((1, whole))
        if threads >= each and (at_once == 1 or at_once < 2 * problem.space[-1])
    ]
    fitting = [tile for tile in tiles if tile != first and tile.fits(info, window, width)]
    return [first, *sorted(fitting, key=lambda tile: estimate(info, problem, tile))[:_MOST_TILES]]


def estimate(info: DeviceInfo, problem: Problem, tile: LastTile | int) -> float:
    """Loads of x for each output, with what idles; comparable among the tiles of a problem."""
    at_once = tile if isinstance(tile, int) else tile.at_once
    blocks = -(-problem.space[-1] // at_once)
    loads = columns(problem.window, at_once) * blocks / problem.space[-1]
    # More values than these leave room for few invocations.
    values = (columns(problem.window, at_once) + at_once) * problem.width
    loads *= max(1.0, values / _MANY_VALUES)
    if isinstance(tile, int):
        return loads
    own = tile.lanes * problem.width
    idle = -(-problem.channels // own) * own / problem.channels
    # Invocations until a GPU is busy, and sixteen bytes side by side for each 128 of memory.
    lanes = problem.batch * prod(problem.space[:-1]) * blocks * -(-problem.channels // problem.width)
    near = min(1.0, tile.lanes / 4) ** 0.5
    few = max(1.0, FEWEST_INVOCATIONS / lanes) ** 0.5
    # What the model does not know: the usual first.
    unusual = 1 + 0.1 * abs(math.log2(tile.lanes * tile.places / 128)) + 0.05 * (tile.unrolled > 1)
    return loads * idle / near * few * unusual


def depthwise(
    x: TensorBox, weight: TensorBox, window: Window, sizes: Sequence[Any], dtype: torch.dtype
) -> TensorBox | None:
    """[B, C, D...] and [C, 1, K...] in as many groups -> [B, C, *sizes] in ``dtype``.

    None where the device or the sizes keep to the general kernel.
    """
    info = context.get().info
    if not convolution_products(info) or not sizes or prod(window.taps) > 1024:
        return None
    if x.get_dtype() not in (torch.float16, torch.bfloat16, torch.float32):
        return None
    x, weight = settled(x), laid_out(weight)
    device: Any = x.get_device()
    batch, channels = x.get_size()[:2]
    last = x.get_layout().stride[1] == 1 and not V.graph.sizevars.statically_known_equals(channels, 1)
    width, of = vector_width(x, 1) if last else 1, [batch, channels, *x.get_size()[2:]]
    hints = [size_hint(n) for n in of]
    static = all(isinstance(n, (int, sympy.Integer)) for n in of)
    problem = Problem(hints[0], hints[1], tuple(hints[2:]), window, x.get_dtype(), last, width, static)
    tile = forced("depthwise") or (tuned(problem) if tuned is not None else None) or tile_by_rules(info, problem)
    if tile is None:
        return None
    shape = [batch, *sizes, channels] if last else [batch, channels, *sizes]
    layout = FixedLayout(device, dtype, shape, FlexibleLayout.contiguous_strides(shape))
    make = functools.partial(_plan, window=window, sizes=tuple(sizes), width=width, tile=tile)
    uses = sum(x.get_size(), sympy.S.Zero)
    made = TensorBox.create(VulkanTemplateBuffer(layout, [x, weight], make, name="depthwise", uses=uses))
    dims = len(sizes)
    return lowering.lowerings[aten.permute](made, [0, dims + 1, *range(1, dims + 1)]) if last else made


def columns(window: Window, at_once: int) -> int:
    """Neighbours of x that ``at_once`` outputs take."""
    return (at_once - 1) * window.stride[-1] + (window.taps[-1] - 1) * window.dilation[-1] + 1


def _plan(
    kernel: VulkanTemplateKernel, window: Window, sizes: tuple[Any, ...], width: int, tile: LastTile | int
) -> tuple[str, dict[str, Any], Any]:
    x = kernel.inputs[0]
    batch, channels, *space = x.get_size()
    one = V.graph.sizevars.statically_known_equals
    size, dtype = kernel.size, x.get_dtype()
    xs, ws = (
        [size(0 if one(n, 1) else s) for n, s in zip(o.get_size(), o.get_layout().stride, strict=True)]
        for o in kernel.inputs
    )
    rows = zip(space, sizes, xs[2:], ws[2:], window.taps, window.stride, window.padding, window.dilation, strict=True)
    axes = [
        {"size": size(n), "out": size(o), "x": a, "w": b, "taps": t, "step": s, "padding": p, "dilation": d}
        for n, o, a, b, t, s, p, d in rows
    ]
    at_once = tile if isinstance(tile, int) else tile.at_once
    values = {
        "width": width,
        "at_once": at_once,
        "columns": columns(window, at_once),
        "axes": axes,
        "inner": axes[-1],
        "outer_taps": prod(window.taps[:-1]),
        "batch": size(batch),
        "channels": size(channels),
        "x_batch": xs[0],
        "w_channel": ws[0],
        "x_address": kernel.address(0),
        "load_w": kernel.operand(1),
        "x_type": load_type(dtype, width),
        "nbytes": dtype.itemsize,
        "accumulator": "float",
    }
    places = batch * sympy_product(sizes[:-1]) * ceildiv(sizes[-1], at_once)
    if isinstance(tile, int):
        values |= {"workgroup": _WORKGROUP, "x_channel": xs[1], "x_elements": elements(dtype, 1, "raw")}
        return "depthwise_first.glsl.jinja", values, ceildiv(places * channels, _WORKGROUP)
    values |= {**asdict(tile), "x_elements": elements(dtype, width, "raw[i]")}
    groups = ceildiv(channels, tile.lanes * width) * ceildiv(places, tile.places)
    return "depthwise_last.glsl.jinja", values, groups
