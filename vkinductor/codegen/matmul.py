"""Lowerings of matrix products onto the matmul templates.

mm, bmm, addmm and baddbmm become one template node over [batch, M, N] with strided operands (nn.Linear's
transposed weight is a stride, not a copy); bias, scaling and whatever follows fuse as its epilogue. Other
devices keep Inductor's own lowerings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv, upcast_compute_type
from torch._inductor.virtualized import V

from vkinductor.runtime.deviceinfo import DeviceInfo

from . import loop_limit, skinny
from .compat import size_hint
from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from .types import glsl_type, literal

aten = torch.ops.aten


@dataclass(frozen=True)
class Tile:
    """One way to cut a matrix product. ``tm`` x ``tn`` results an invocation.

    Direct: ``lanes`` invocations split k, ``blocks`` such groups a workgroup.
    Tiled: a workgroup computes ``bm`` x ``bn`` in steps of ``bk`` through shared memory.
    """

    template: str
    tm: int
    tn: int
    lanes: int = 1
    blocks: int = 64
    bm: int = 0
    bn: int = 0
    bk: int = 0

    @property
    def shared_elements(self) -> int:
        """Elements of shared memory a workgroup needs."""
        if self.template == TILED:
            return self.bk * (self.bm + self.bn + 2)
        return self.lanes * self.blocks if self.lanes > 1 else 0

    @property
    def workgroup(self) -> int:
        """Invocations a workgroup."""
        if self.template == TILED:
            return (self.bm // self.tm) * (self.bn // self.tn)
        return self.lanes * self.blocks


DIRECT = "matmul_direct.glsl.jinja"
TILED = "matmul_tiled.glsl.jinja"

# Largest first; the first that the device can hold and the problem fills is taken.
TILED_CANDIDATES = (
    Tile(TILED, tm=8, tn=8, bm=128, bn=128, bk=8),
    Tile(TILED, tm=4, tn=4, bm=64, bn=64, bk=16),
    Tile(TILED, tm=4, tn=2, bm=32, bn=32, bk=16),
)


def fits(tile: Tile, info: DeviceInfo, element: int) -> bool:
    """Whether the device's workgroup and shared-memory limits hold ``tile`` with ``element``-byte accumulators."""
    limits = info.limits
    return (
        tile.workgroup <= min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        and tile.shared_elements * element <= limits.max_shared_memory
    )


def choose(info: DeviceInfo, batch: int, m: int, n: int, k: int, element: int, b_k_contiguous: bool) -> Tile:
    """A tile for a product of (likely) size batch x m x n x k on ``info``."""
    if info.kind == "cpu":
        lanes = loop_limit.lanes(info, 1, 64, k)
        blocks = max(1, 16 // lanes)
        if m == 1:
            return Tile(DIRECT, tm=1, tn=2, lanes=lanes, blocks=blocks)
        return Tile(DIRECT, tm=4 if m >= 4 else m, tn=4, lanes=lanes, blocks=blocks)
    if m <= 8:
        if b_k_contiguous:
            # A row of weights is contiguous in k: lanes read along it.
            lanes = 64 if k >= 256 else 16
            return Tile(DIRECT, tm=min(m, 8), tn=2, lanes=lanes, blocks=max(1, 128 // lanes))
        return Tile(DIRECT, tm=min(m, 8), tn=1, lanes=1, blocks=128)
    for tile in TILED_CANDIDATES:
        blocks = batch * -(-m // tile.bm) * -(-n // tile.bn)
        if fits(tile, info, element) and (blocks >= 64 or tile is TILED_CANDIDATES[-1]):
            return tile
    return Tile(DIRECT, tm=2, tn=2, lanes=1, blocks=64)


def _strides(kernel: VulkanTemplateKernel, operand: Any, batched: bool) -> list[Any]:
    strides = list(operand.get_layout().stride)
    return strides if batched else [sympy.S.Zero, *strides]


def _plan(kernel: VulkanTemplateKernel) -> tuple[str, dict[str, Any], Any]:
    few_rows = skinny.plan(kernel)
    if few_rows is not None:
        return few_rows
    node = kernel.node
    a, b = kernel.inputs
    batched = len(node.get_size()) == 3
    batch = node.get_size()[0] if batched else sympy.S.One
    m, n = node.get_size()[-2:]
    k = a.get_size()[-1]
    a_strides, b_strides = _strides(kernel, a, batched), _strides(kernel, b, batched)
    dtype = upcast_compute_type(node.get_dtype())
    register = glsl_type(dtype)
    k_contiguous = b_strides[1] == 1 and n != 1
    hints = (size_hint(batch), size_hint(m), size_hint(n), size_hint(k))
    tile = choose(kernel.device_info, *hints, element=register.nbytes, b_k_contiguous=k_contiguous)
    context = {
        "m": kernel.size(m),
        "n": kernel.size(n),
        "k": kernel.size(k),
        "batch": kernel.size(batch),
        "a_strides": [kernel.size(s) for s in a_strides],
        "b_strides": [kernel.size(s) for s in b_strides],
        "a_k_contiguous": a_strides[2] == 1,
        "b_k_contiguous": b_strides[1] == 1,
        "accumulator": register.register,
        "zero": literal(0, dtype),
        "load_a": kernel.operand(0),
        "load_b": kernel.operand(1),
        "tm": tile.tm,
        "tn": tile.tn,
        "lanes": tile.lanes,
        "blocks": tile.blocks,
        "bm": tile.bm,
        "bn": tile.bn,
        "bk": tile.bk,
        "unroll": loop_limit.unrolled(kernel.device_info, k, tile.lanes, 1, what="a matrix product"),
    }
    if tile.template == TILED:
        groups = batch * ceildiv(m, tile.bm) * ceildiv(n, tile.bn)
    else:
        groups = ceildiv(batch * ceildiv(m, tile.tm) * ceildiv(n, tile.tn), tile.blocks)
    return tile.template, context, groups


def _product(a: TensorBox, b: TensorBox) -> TensorBox:
    """The template node of a @ b over [M, N] or [batch, M, N]."""
    left, right = realized(a), realized(b)
    size = [*left.get_size()[:-1], right.get_size()[-1]]
    if len(size) == 3:
        V.graph.sizevars.check_equals(left.get_size()[0], right.get_size()[0])
    V.graph.sizevars.check_equals(left.get_size()[-1], right.get_size()[-2])
    output = FixedLayout(left.get_device(), left.get_dtype(), size, FlexibleLayout.contiguous_strides(size))
    return TensorBox.create(VulkanTemplateBuffer(output, [left, right], _plan))


def _empty(a: TensorBox, b: TensorBox) -> bool:
    """Whether a dimension is known to be zero (then Inductor's own lowering gives zeros)."""
    return any(V.graph.sizevars.statically_known_equals(s, 0) for s in [*a.get_size(), *b.get_size()])


def _zeros(a: TensorBox, b: TensorBox) -> TensorBox:
    size = [*a.get_size()[:-1], b.get_size()[-1]]
    return lowering.full(size, 0, dtype=a.get_dtype(), device=a.get_device())


def mm(a: TensorBox, b: TensorBox, *, layout: Any = None) -> TensorBox:
    """aten.mm and aten.bmm: [M, K] @ [K, N] or [B, M, K] @ [B, K, N], any strides, every dtype of types.py."""
    return _zeros(a, b) if _empty(a, b) else _product(a, b)


def addmm(
    bias: TensorBox, a: TensorBox, b: TensorBox, *, beta: Any = 1, alpha: Any = 1, layout: Any = None
) -> TensorBox:
    """aten.addmm and aten.baddbmm: beta * bias + alpha * (a @ b); with beta == 0, bias is not read."""
    ops = lowering.lowerings
    product = mm(a, b, layout=layout)
    if alpha != 1:
        product = ops[aten.mul](product, alpha)
    if beta == 0:
        return product
    if beta != 1:
        bias = ops[aten.mul](bias, beta)
    return ops[aten.add](product, bias)
