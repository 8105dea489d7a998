"""What every attention kernel is told: sizes, strides, mask and scale of one problem, as GLSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor.ir import TensorBox
from torch._inductor.virtualized import V

from vkinductor.codegen.template_kernel import VulkanTemplateKernel, laid_out


@dataclass(frozen=True)
class Problem:
    """Sizes of q [batch, heads, queries, width], k [batch, groups, keys, width] and v [batch, groups, keys, width_v].

    ``mask``: "" (none), "bool" (true where a key is seen) or "bias" (added to the scores). The widths are fixed numbers;
    everything else may vary.
    """

    batch: Any
    heads: Any
    groups: Any
    queries: Any
    keys: Any
    width: int
    width_v: int
    dtype: torch.dtype
    mask: str
    causal: bool
    scale: Any

    @classmethod
    def of(cls, q: TensorBox, k: TensorBox, v: TensorBox, mask: TensorBox | None, causal: bool, scale: Any) -> Problem:
        """The problem of these operands."""
        batch, heads, queries, width = q.get_size()
        fixed = V.graph.sizevars.guard_int
        kind = "" if mask is None else "bool" if mask.get_dtype() == torch.bool else "bias"
        return cls(
            batch, heads, k.get_size()[1], queries, k.get_size()[2], int(fixed(width)), int(fixed(v.get_size()[3])),
            q.get_dtype(), kind, causal, scale,
        )  # fmt: skip

    def context(self, kernel: VulkanTemplateKernel) -> dict[str, Any]:
        """What templates call the numbers."""
        return {
            "batch": kernel.size(self.batch),
            "heads": kernel.size(self.heads),
            "groups": kernel.size(self.groups),
            "queries": kernel.size(self.queries),
            "keys": kernel.size(self.keys),
            "width": self.width,
            "width_v": self.width_v,
            "mask": self.mask,
            "causal": self.causal,
            "scale": number(kernel, self.scale),
        }


def number(kernel: VulkanTemplateKernel, value: Any) -> str:
    """GLSL of a float32 that may vary."""
    expr = sympy.sympify(value)
    if expr.free_symbols:
        return kernel.real_argument(expr, torch.float32)
    return f"float({float(expr)!r})"


def heads_inside(size: Any) -> list[Any]:
    """Strides of [B, H, L, D] that lies in memory as [B, L, H, D]."""
    _, heads, length, width = size
    return [length * heads * width, width, heads * width, 1]


def operands(*tensors: TensorBox | None) -> list[Any]:
    """Those that there are, as strided operands of a kernel."""
    return [laid_out(x) for x in tensors if x is not None]


def strides(kernel: VulkanTemplateKernel, position: int, sizes: Any = None) -> list[str]:
    """GLSL of operand ``position``'s strides; zero where it has one element and ``sizes`` (what it is broadcast to, or
    its own) makes no use of it."""
    layout = kernel.inputs[position].get_layout()
    one = V.graph.sizevars.statically_known_equals
    return ["0" if one(n, 1) else kernel.size(s) for n, s in zip(layout.size, layout.stride, strict=True)]


def address(kernel: VulkanTemplateKernel, var: str, layout: Any, index: str) -> str:
    """GLSL of the address of an element of a half-precision operand; ``index`` is relative to its view."""
    return f"uint64_t({var}) + uint64_t({kernel.size(layout.offset)} + {index}) * 2ul"
