"""Depthwise convolutions as a family: codegen/depthwise's tiles, a problem as aten.convolution, its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import depthwise, heuristics
from ..alignment import WIDEST
from ..convolution_tiles import Window
from ..depthwise import LastTile, Problem
from . import compare
from .family import Bucket, Operand, Operation, Size, vector_width

# Channels of the result that are compared with double precision, at its first and its last ones.
_CHANNELS = 4
# (relative, share of the root mean square): what rounding the result, and adding up in another order, may change.
_TOLERANCE = {torch.float16: (2e-3, 1e-3), torch.bfloat16: (1.6e-2, 2e-3), torch.float32: (1e-5, 1e-4)}


class Depthwise:
    """The family of depthwise convolutions; problems are `depthwise.Problem`."""

    name = "depthwise"
    sources: tuple[str, ...] = (
        "codegen/depthwise.py",
        "codegen/tuning/depthwise.py",
        "codegen/template_kernel.py",
        "templates",
    )

    def bucket(self, problem: Problem) -> Bucket:
        sizes = {"batch": problem.batch, "channels": problem.channels}
        sizes |= {f"space{d}": n for d, n in enumerate(problem.space)}
        dtype, order = str(problem.dtype).removeprefix("torch."), "last" if problem.last else "first"
        kind = f"{dtype} {order} {problem.window} {problem.width}"
        return Bucket(kind, tuple(Size(name, n, problem.static) for name, n in sizes.items()))

    def candidates(self, info: DeviceInfo, problem: Problem) -> Sequence[LastTile | int]:
        return depthwise.candidates(info, problem)

    def label(self, candidate: LastTile | int) -> str:
        if isinstance(candidate, int):
            return f"at_once={candidate}"
        return " ".join(f"{name}={value}" for name, value in dataclasses.asdict(candidate).items())

    def estimate(self, info: DeviceInfo, problem: Problem, candidate: LastTile | int) -> float:
        return depthwise.estimate(info, problem, candidate)

    def forced(self, candidate: LastTile | int) -> AbstractContextManager[Any]:
        return heuristics.override(depthwise=candidate)

    def operation(self, problem: Problem) -> Operation:
        window, dtype, channels = problem.window, problem.dtype, problem.channels
        x = _operand((problem.batch, channels, *problem.space), dtype, problem.last)
        weight = _operand((channels, 1, *window.taps), dtype, False)
        zeros = [0] * len(window.taps)
        numbers = ([*window.stride], [*window.padding], [*window.dilation], False, zeros)
        tolerance = _TOLERANCE[dtype]

        def convolution(x: Any, weight: Any, groups: int = channels) -> Any:
            return torch.ops.aten.convolution.default(x, weight, None, *numbers, groups)

        def check(values: Sequence[torch.Tensor], got: torch.Tensor) -> str | None:
            some = sorted({*range(channels)[:_CHANNELS], *range(channels)[-_CHANNELS:]})
            for b in sorted({0, problem.batch - 1}):
                image, kernels = values[0][b : b + 1, some].double(), values[1][some].double()
                want = convolution(image, kernels, len(some))
                wrong = compare.difference(got[b : b + 1, some], want.to(dtype), tolerance)
                if wrong is not None:
                    return f"in channels {some} of image {b}: {wrong}"
            return None

        outputs = problem.batch * channels * prod(window.positions(problem.space))
        nbytes = (prod(x.size) + prod(weight.size) + outputs) * dtype.itemsize
        return Operation(convolution, (x, weight), nbytes, 2 * outputs * prod(window.taps), check, tolerance)


def _operand(size: tuple[int, ...], dtype: torch.dtype, last: bool) -> Operand:
    batch, channels, *space = size
    if not last:
        return Operand(size, torch.empty(size, device="meta").stride(), dtype)
    stride = torch.empty((batch, *space, channels), device="meta").stride()
    return Operand(size, (stride[0], stride[-1], *stride[1:-1]), dtype)


def problem_of(
    batch: int, channels: int, height: int, width: int, tap: int, stride: int, padding: int, dtype: torch.dtype
) -> Problem:
    """The problem of a square kernel over images with channels last."""
    window = Window((tap, tap), (stride, stride), (padding, padding), (1, 1))
    at_once = vector_width(channels, WIDEST // dtype.itemsize)
    return Problem(batch, channels, (height, width), window, dtype, True, at_once)


DEPTHWISE = Depthwise()
