"""Convolutions as a family: codegen/convolution_tiles' candidates, a problem as aten.convolution, its reference.

Those of one element without gaps are matrix products, and tuned as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import torch

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import convolution_tiles
from ..convolution_tiles import Problem, Window
from ..gemm import choose
from ..gemm.cooperative import SubgroupTile
from . import compare
from .family import Bucket, Operand, Operation, Size
from .gemm import GEMM

# Channels of the result that are compared with double precision, at its first and its last ones.
_CHANNELS = 4
# (relative, share of the root mean square): what rounding the result, and adding up in another order, may change.
_TOLERANCE = {torch.float16: (2e-3, 1e-3), torch.bfloat16: (1.6e-2, 2e-3)}


class Convolution:
    """The family of convolutions that gather; problems are `convolution_tiles.Problem`."""

    name = "convolution"
    sources: tuple[str, ...] = (
        "codegen/convolution_tiles.py",
        "codegen/convolution_products.py",
        "codegen/gemm",
        "codegen/template_kernel.py",
        "templates",
    )

    def bucket(self, problem: Problem) -> Bucket:
        sizes = {"batch": problem.batch, "channels": problem.channels, "outputs": problem.outputs}
        sizes |= {f"space{d}": n for d, n in enumerate(problem.space)}
        dtype = str(problem.dtype).removeprefix("torch.")
        return Bucket(f"{dtype} {problem.window}", tuple(Size(name, n, problem.static) for name, n in sizes.items()))

    def candidates(self, info: DeviceInfo, problem: Problem) -> Sequence[SubgroupTile]:
        return convolution_tiles.candidates(info, problem)

    def label(self, candidate: SubgroupTile) -> str:
        return GEMM.label(candidate)

    def estimate(self, info: DeviceInfo, problem: Problem, candidate: SubgroupTile) -> float:
        return convolution_tiles.estimate(info, problem, candidate)

    def forced(self, candidate: SubgroupTile) -> AbstractContextManager[Any]:
        return choose.forced(candidate)

    def operation(self, problem: Problem) -> Operation:
        window, dtype = problem.window, problem.dtype
        x = _last((problem.batch, problem.channels, *problem.space), dtype)
        weight = _last((problem.outputs, problem.channels, *window.taps), dtype)
        zeros = [0] * len(window.taps)
        numbers = ([*window.stride], [*window.padding], [*window.dilation], False, zeros, 1)
        tolerance = _TOLERANCE[dtype]

        def convolution(x: Any, weight: Any) -> Any:
            return torch.ops.aten.convolution.default(x, weight, None, *numbers)

        def check(values: Sequence[torch.Tensor], got: torch.Tensor) -> str | None:
            some = sorted({*range(problem.outputs)[:_CHANNELS], *range(problem.outputs)[-_CHANNELS:]})
            for b in sorted({0, problem.batch - 1}):
                want = convolution(values[0][b : b + 1].double(), values[1][some].double())
                wrong = compare.difference(got[b : b + 1, some], want.to(dtype), tolerance)
                if wrong is not None:
                    return f"in channels {some} of image {b}: {wrong}"
            return None

        product = problem.product
        moved = prod(x.size) + prod(weight.size) + product.m * product.n
        flops = 2 * product.m * product.n * product.k
        return Operation(convolution, (x, weight), moved * dtype.itemsize, flops, check, tolerance)


def _last(size: tuple[int, ...], dtype: torch.dtype) -> Operand:
    """A tensor of ``size`` with channels last."""
    batch, channels, *space = size
    stride = torch.empty((batch, *space, channels), device="meta").stride()
    return Operand(size, (stride[0], stride[-1], *stride[1:-1]), dtype)


def problem_of(
    batch: int, channels: int, height: int, width: int, outputs: int, tap: int, stride: int, padding: int,
    dtype: torch.dtype,
) -> Problem:  # fmt: skip
    """The problem of a square kernel over images."""
    window = Window((tap, tap), (stride, stride), (padding, padding), (1, 1))
    return Problem(batch, -(-channels // 8) * 8, outputs, (height, width), window, dtype)


CONVOLUTION = Convolution()
