"""Weights that are kept in 8 bits: products of few rows read them as they lie and convert what they load."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor import dependencies, ir
from torch._inductor.ir import BaseView, FixedLayout, Pointwise, StorageBox, TensorBox
from torch._inductor.virtualized import V

from ..template_kernel import laid_out


def converted_weights(b: TensorBox) -> Any | None:
    """The int8 operand, as it lies in memory, that ``b`` is in floating point; None where it is anything else."""
    data: Any = b
    while isinstance(data, (TensorBox, StorageBox, BaseView)):
        data = data.data
    if not isinstance(data, Pointwise) or not b.get_dtype().is_floating_point or b.get_dtype() == torch.float64:
        return None
    count = data.inner_fn_opcount()
    names = sorted(b.get_read_names())
    if len(names) != 1 or V.graph.get_dtype(names[0]) != torch.int8 or count.num_ops > 2:
        return None
    if not count.used_ops <= {"load", "to_dtype"}:
        return None
    loader = b.make_loader()
    found = dependencies.extract_read_writes(lambda index, _: loader(index), b.get_size(), ())
    place = _strided([dep.index for dep in found.reads], found.range_vars)
    buffer = V.graph.try_get_buffer(names[0])
    if place is None or buffer is None:
        return None
    source = laid_out(buffer)
    offset, strides = place
    storage, layout = ir.as_storage_and_layout(source, freeze=False)
    fixed = FixedLayout(layout.device, torch.int8, [*b.get_size()], strides, offset)
    return TensorBox(ir.ReinterpretView(data=storage, layout=fixed))


def _strided(indices: list[Any], symbols: Any) -> tuple[Any, list[Any]] | None:
    """(offset, strides) of the one index, if it is a sum of multiples of ``symbols``."""
    if len(indices) != 1:
        return None
    index = sympy.expand(indices[0])
    strides = [index.coeff(s) if isinstance(s, sympy.Symbol) else sympy.S.Zero for s in symbols]
    used = [s for s in symbols if isinstance(s, sympy.Symbol)]
    offset = index.subs(dict.fromkeys(used, 0))
    rest = index - offset - sum(stride * s for stride, s in zip(strides, symbols, strict=True))
    if sympy.expand(rest) != 0 or any(stride.free_symbols & {*used} for stride in strides):
        return None
    return offset, strides
