"""Packed rows as operands of kernels: where they lie, and a copy of those that begin where blocks must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.ir import TensorBox
from torch._inductor.utils import sympy_product

from ..alignment import begins_aligned, divides
from ..eager.program import is_compiling
from ..template_kernel import VulkanTemplateKernel, laid_out
from .formats import Packing

aten = torch.ops.aten


def flat(x: TensorBox) -> TensorBox:
    """``x`` [..., n] as [rows, n]."""
    *outer, inner = x.get_size()
    if len(outer) == 1:
        return x
    return lowering.lowerings[aten.view.default](x, [sympy_product(outer), inner])


def rows_in_memory(x: TensorBox) -> Any:
    """``x`` [rows, n] in memory, each row in one piece."""
    operand = laid_out(x)
    return operand if operand.get_layout().stride[1] == 1 else laid_out(ir.ExternKernel.copy_input(operand))


def rows_of_blocks(x: TensorBox, packing: Packing) -> Any:
    """``x`` [rows, bytes] in memory, each row in one piece at a multiple of the format's alignment."""
    operand = laid_out(x)
    if not _is_aligned(operand, packing.alignment):
        operand = laid_out(ir.ExternKernel.copy_input(operand))
    return operand


def _is_aligned(operand: Any, alignment: int) -> bool:
    layout = operand.get_layout()
    if layout.stride[1] != 1:
        return False
    # Eager calls come through device/quantized.py, which has seen to it.
    return is_compiling() or (
        begins_aligned(operand.get_name())
        and divides(alignment, layout.offset)
        and divides(alignment, layout.stride[0])
    )


def address(kernel: VulkanTemplateKernel, position: int) -> tuple[str, str]:
    """GLSL of the address of operand ``position``'s first row, and of the elements from a row to the next."""
    return kernel.address(position), kernel.size(kernel.inputs[position].get_layout().stride[0])


def row_of_table(load: Callable[[str], str], stride: str, rows: str) -> Callable[[str], str]:
    """A function from GLSL of a place among tokens, ``stride`` apart, to GLSL (uint) of the row of a table of so many
    ``rows`` that the token there names: negative ones from the end, and in bounds whatever it is."""

    def row_of(place: str) -> str:
        token = f"int({load(f'({place}) * {stride}')})"
        return f"uint(clamp({token} < 0 ? {token} + int({rows}) : {token}, 0, int({rows}) - 1))"

    return row_of
