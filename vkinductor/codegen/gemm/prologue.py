"""Operands that a product computes while it loads them: pointwise, made for this product alone, never in memory.

Owns what such an operand is and the GLSL functions by which a template loads it. Whether it pays to compute an element
once for each block that needs it is ``choose.py``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import sympy
import torch
from torch._inductor import dependencies
from torch._inductor.codegen.common import IndentedBuffer
from torch._inductor.ir import BaseView, FlexibleLayout, Pointwise, StorageBox, TensorBox
from torch._inductor.utils import upcast_compute_type
from torch._inductor.virtualized import V

from ..glsl_cse import GlslCSE
from ..operands import as_dtype, round_to_half
from ..pending import lines_of
from ..template_kernel import HALVES, VulkanTemplateKernel
from ..types import glsl_type
from ..vectorize import Dimension, scalar, vectorize

aten = torch.ops.aten

# What only looks at the elements of another tensor: the product may be the one that uses this.
_VIEWS = frozenset(
    {
        aten.permute,
        aten.t,
        aten.transpose,
        aten.unsqueeze,
        aten.squeeze,
        aten.expand,
        aten.view,
        aten.slice,
        aten.select,
    }
)
# Loads from anywhere, branches, random numbers, and positions as values (whose ranges Inductor finds in loop bodies)
# stay kernels of their own.
_REFUSED = frozenset(
    {"indirect_indexing", "masked", "load_seed", "rand", "randn", "randint64", "bucketize", "index_expr", "value_expr"}
)
# Positions of an element: (batch, row, column).
_POSITIONS = tuple(sympy.Symbol(name, integer=True, nonnegative=True) for name in ("batch", "row", "column"))
_MOST_OPERATIONS = 40


@dataclass(frozen=True)
class Prologue:
    """An operand of ``size`` that is computed from ``inputs``, realized buffers, by ``operations`` an element.

    ``load``: the value at an index, as Inductor's loaders are. ``inner``: the dimension along which its inputs are
    contiguous, -1 or -2.
    """

    size: tuple[Any, ...]
    dtype: torch.dtype
    inputs: tuple[Any, ...]
    operations: int
    load: Callable[[Any], Any]
    inner: int

    def get_size(self) -> list[Any]:
        """As a buffer tells it."""
        return [*self.size]

    def get_dtype(self) -> torch.dtype:
        """As a buffer tells it."""
        return self.dtype


def _alone(node: Any) -> bool:
    """Whether the tensor of an FX node has one use, all of which the node's own is."""
    while isinstance(node, torch.fx.Node):
        if len(node.users) != 1:
            return False
        if getattr(node.target, "overloadpacket", None) not in _VIEWS:
            return True
        node = node.args[0]
    return False


def prologue(x: TensorBox, node: Any) -> Prologue | None:
    """``x``, the value of FX node ``node``, as one; None where it is (or has to be) in memory."""
    data: Any = x
    while isinstance(data, (TensorBox, StorageBox, BaseView)):
        data = data.data
    if not isinstance(data, Pointwise) or not x.get_dtype().is_floating_point or not _alone(node):
        return None
    count = data.inner_fn_opcount()
    names = sorted(x.get_read_names())
    if count.used_ops & _REFUSED or count.num_ops > _MOST_OPERATIONS or not names:
        return None
    buffers = [V.graph.try_get_buffer(name) for name in names]
    # What lies elsewhere is a number that a kernel gets by value.
    if any(buffer is None or buffer.get_device() != x.get_device() for buffer in buffers):
        return None
    if any(name in V.graph.mutated_buffers for name in names):
        return None
    inputs = tuple(b if isinstance(b, TensorBox) else TensorBox.create(cast(Any, b)) for b in buffers)
    loader = x.make_loader()
    return Prologue(tuple(x.get_size()), x.get_dtype(), inputs, count.num_ops, loader, _inner(x, loader))


def _inner(x: TensorBox, loader: Any) -> int:
    """The dimension along which most of what ``loader`` reads is contiguous."""
    with patch.object(FlexibleLayout, "allow_indexing", True):
        found = dependencies.extract_read_writes(lambda index, _: loader(index), x.get_size(), ())
    at, variables = {-1: 0, -2: 0}, list(found.range_vars or ())
    for dep in found.reads:
        for dim in at:
            symbol, index = variables[dim], sympy.expand(dep.index)
            if isinstance(symbol, sympy.Symbol) and index.coeff(symbol) == 1:
                at[dim] += V.graph.get_dtype(dep.name).itemsize
    return -1 if at[-1] >= at[-2] else -2


@dataclass(frozen=True)
class Functions:
    """The GLSL functions by which a template loads a computed operand (matmul_prologue.glsl.jinja).

    ``name``(batch, row, column) is an element in a ``register``: ``body``, then ``result``. ``name``_wide(batch, row,
    column, unit) fills ``unit`` with ``width`` neighbours along the ``inner`` position from one that is a multiple of
    their number: ``before`` once, ``each`` for neighbour v.
    """

    name: str
    register: str
    width: int
    body: list[str]
    result: str
    before: list[str]
    each: list[str]


def functions(kernel: VulkanTemplateKernel, operand: Prologue, name: str, width: int) -> Functions:
    """``operand`` as functions called ``name``; ``width`` neighbours at once."""
    dtype = upcast_compute_type(operand.dtype)
    kept, kernel.cse, kernel.narrow = (kernel.cse, kernel.narrow), GlslCSE(), {}
    body = IndentedBuffer()
    try:
        with kernel, kernel.swap_buffers(body):
            result = as_dtype(operand.load([*_POSITIONS[-len(operand.size) :]]), dtype)
            if operand.dtype in HALVES:
                result = round_to_half(result, operand.dtype)  # as it would be in memory
    finally:
        kernel.cse, kernel.narrow = kept
    lines, accesses = lines_of(body), list(kernel.accesses.values())
    inner = _POSITIONS[operand.inner]
    tree = SimpleNamespace(numel=operand.size[operand.inner])
    entry = SimpleNamespace(name=inner.name, root=tree, divisor=1, length=tree.numel)
    along = Dimension(inner.name, kernel.index_dtype, tree, {inner: entry})
    wide = vectorize([*lines, f"unit[v] = {result};"], width, along, accesses)
    return Functions(name, glsl_type(dtype).register, width, scalar(lines, accesses), result, wide.before, wide.body)
