"""Convolutions and their gradients as one family of kernels: products whose second operand is read at positions.

    y[g, m, n] = sum over k of a[g, m, k] * x[g, p(n, k)],  n = (n0, t1..tD),  k = (k0, k1..kD),
    p_d = t_d * alpha_d + k_d * beta_d + gamma_d,  zero where p_d is outside of x.

The convolution itself, its gradient with respect to the input (which is the transposed convolution) and the one with
respect to the weight differ in what m, n, k and p are: `Problem`, made in ``convolution.py``. This module chooses the
tile and fills in the templates. Nothing is unfolded in memory; operands have any strides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv, upcast_compute_type
from torch.utils._sympy.functions import FloorDiv

from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from . import loop_limit
from .compat import size_hint
from .gemm import tiles
from .gemm.tiles import DirectTile, TiledTile
from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel
from .types import glsl_type, literal

aten = torch.ops.aten
prims = torch.ops.prims

DIRECT = "convolution_direct.glsl.jinja"
TILED = "convolution_tiled.glsl.jinja"


@dataclass(frozen=True)
class Axis:
    """One spatial dimension: p = t * alpha + k * beta + gamma, inside [0, size).

    ``stride`` > 1: p = (t + gamma + k * beta) / stride where that is whole (``alpha`` is then 1), else no term.
    ``checked``: whether p can be outside at all.
    """

    size: Any
    alpha: int
    beta: int
    gamma: int
    stride: int = 1
    checked: bool = True


@dataclass(frozen=True)
class Problem:
    """The sizes and strides of one product of the family (elements; sympy expressions where they vary).

    ``n`` and ``k``: sizes of the digits, the last one fastest. ``a``: strides of (g, m, k0, k1..); ``x``: of
    (g, n0, k0, p1..); ``out``: of (part, g, m, n0, t1..) in the result. ``splits``: parts of the sum over k that are
    results of their own, to be added. ``flat``: whether the direct template counts all digits of k in one loop.
    """

    name: str
    groups: Any
    m: Any
    n: tuple[Any, ...]
    k: tuple[Any, ...]
    axes: tuple[Axis, ...]
    a: tuple[Any, ...]
    x: tuple[Any, ...]
    out: tuple[Any, ...]
    splits: int = 1
    flat: bool = False

    @property
    def outer(self) -> int:
        """How many digits of k the direct template's outer loop counts."""
        if self.flat:
            return len(self.k)
        return 2 if len(self.axes) > 1 or self.splits > 1 else 1


def choose(info: DeviceInfo, batch: int, m: int, n: int, k: int, element: int) -> DirectTile | TiledTile:
    """A tile for ``batch`` products of (likely) size m x n x k on ``info``."""
    if info.kind == "cpu":
        return DirectTile(tm=min(m, 4), tn=4, blocks=16)
    if m >= 16 and n >= 32 and k >= 8:
        for tile in tiles.TILED:
            blocks = batch * -(-m // tile.bm) * -(-n // tile.bn)
            if tile.holds(info, element) and (blocks >= 64 or tile is tiles.TILED[-1]):
                return tile
    return DirectTile(tm=min(m, 4), tn=2, blocks=128)


def parts(info: DeviceInfo, outputs: int, terms: int) -> int:
    """Into how many parts a sum of ``terms`` is cut when there are only ``outputs`` of them."""
    # A direct tile keeps 16 results: fewer invocations than these leave the device idle.
    wanted = 256 if info.kind == "cpu" else 65536
    return max(1, min(wanted * 16 // max(outputs, 1), terms // 128))


def product(problem: Problem, a: Any, x: Any, size: Sequence[Any], dtype: Any) -> TensorBox:
    """``problem`` over realized operands: a contiguous result of ``size`` and ``dtype``, the sum of all parts."""
    problem = _below_loop_limit(problem)
    parts_dtype = torch.float32 if problem.splits > 1 and dtype in (torch.float16, torch.bfloat16) else dtype
    whole = [*size] if problem.splits == 1 else [problem.splits, *size]
    layout = FixedLayout(x.get_device(), parts_dtype, whole, FlexibleLayout.contiguous_strides(whole))
    # It holds no tensors: a closure over the operands would keep what the scheduler wants to replace.
    made = TensorBox.create(
        VulkanTemplateBuffer(
            layout, [a, x], lambda kernel: _plan(kernel, problem), name=problem.name, uses=problem.groups
        )
    )
    if problem.splits == 1:
        return made
    ops = lowering.lowerings
    return ops[prims.convert_element_type](ops[aten.sum](made, [0]), dtype)


def _order(problem: Problem) -> list[int]:
    """The digits of k from the slowest to the fastest, as they lie in memory."""
    natural = list(range(len(problem.k)))
    return [*natural[1:], 0] if problem.x[2] == 1 and problem.k[0] != 1 else natural


def _passes(problem: Problem) -> Any:
    """Of the direct template's loops, an invocation."""
    sizes = [problem.k[d] for d in _order(problem)]
    nested: Any = sympy.S.One
    for size in reversed(sizes[problem.outer :]):
        nested = size * nested + 2
    flat = _product(sizes[: problem.outer])
    return nested * (flat if problem.splits == 1 else ceildiv(flat, problem.splits))


def _below_loop_limit(problem: Problem) -> Problem:
    """``problem`` in as many parts as the device's loops can do; sizes that vary are guarded."""
    info = context.get().info
    if not loop_limit.limited(info) or info.kind != "cpu":
        return problem
    most = loop_limit.budget(info)
    if size_hint(_passes(problem)) > most:
        # One loop over all digits: each nested one would have to be short enough by itself.
        terms = size_hint(_product(problem.k))
        splits = max(problem.splits, -(-terms // most))
        problem = replace(problem, flat=True, splits=splits)
    loop_limit.require(_passes(problem), most, "a convolution")
    return problem


def _phase(axis: Axis, size: Any, kernel: VulkanTemplateKernel) -> dict[str, Any] | None:
    if axis.stride == 1:
        return None
    # Taps that meet a residue class are ``step`` apart.
    step = axis.stride // gcd(axis.stride, -axis.beta)
    return {"stride": axis.stride, "step": step, "dilation": -axis.beta, "limit": kernel.size(size)}


def _plan(kernel: VulkanTemplateKernel, problem: Problem) -> tuple[str, dict[str, Any], Any]:
    dims = len(problem.axes)
    dtype = upcast_compute_type(kernel.node.get_dtype())
    register = glsl_type(dtype)
    phases = [_phase(axis, size, kernel) for axis, size in zip(problem.axes, problem.n[1:], strict=True)]
    within = [problem.n[0], *(ceildiv(n, axis.stride) for n, axis in zip(problem.n[1:], problem.axes, strict=True))]
    batches = problem.groups * problem.splits * prod(axis.stride for axis in problem.axes)
    columns, terms = _product(within), _product(problem.k)
    taps = prod(phase["step"] for phase in phases if phase)
    hints = (size_hint(problem.m), size_hint(columns), -(-size_hint(terms) // problem.splits // taps))
    tile = choose(kernel.device_info, size_hint(batches), *hints, element=register.nbytes)
    natural = list(range(dims + 1))
    order = _order(problem)
    size = kernel.size
    context = {
        "dims": dims,
        "natural": natural,
        "order": order,
        "outer": problem.outer,
        "m": size(problem.m),
        "n": [size(s) for s in within],
        "k": [size(s) for s in problem.k],
        "batches": size(batches),
        "phases": phases,
        "alpha": [axis.alpha for axis in problem.axes],
        "beta": [
            -(phase["step"] * phase["dilation"] // axis.stride) if phase else axis.beta
            for axis, phase in zip(problem.axes, phases, strict=True)
        ],
        "gamma": [axis.gamma for axis in problem.axes],
        "size": [size(axis.size) for axis in problem.axes],
        "checked": [axis.checked for axis in problem.axes],
        "a": {"g": size(problem.a[0]), "m": size(problem.a[1]), "k": [size(s) for s in problem.a[2:]]},
        "a_k_contiguous": problem.a[1] != 1,
        "x_k_contiguous": order != natural,
        "x": {
            "g": size(problem.x[0]),
            "n0": size(problem.x[1]),
            "k0": size(problem.x[2]),
            "s": [size(s) for s in problem.x[3:]],
        },
        "out": {
            "split": size(problem.out[0]),
            "g": size(problem.out[1]),
            "m": size(problem.out[2]),
            "n0": size(problem.out[3]),
            "s": [size(s) for s in problem.out[4:]],
        },
        "accumulator": register.register,
        "zero": literal(0, dtype),
        "load_a": kernel.operand(0),
        "load_x": kernel.operand(1),
        **dataclasses.asdict(tile),
        "splits": str(problem.splits),
    }
    if isinstance(tile, TiledTile):
        return TILED, context, batches * ceildiv(problem.m, tile.bm) * ceildiv(columns, tile.bn)
    blocks = batches * ceildiv(problem.m, tile.tm) * ceildiv(columns, tile.tn)
    return DIRECT, context, ceildiv(blocks, tile.blocks)


def _product(sizes: Sequence[Any]) -> Any:
    result: Any = sympy.S.One
    for size in sizes:
        result = result * size
    return result


def output_size(size: Any, kernel: Any, stride: int, padding: int, dilation: int) -> Any:
    """Positions of a kernel over ``size`` elements of one dimension."""
    return FloorDiv(size + 2 * padding - dilation * (kernel - 1) - 1, stride) + 1
