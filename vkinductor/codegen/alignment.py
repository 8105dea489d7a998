"""What is known when a kernel is written about where memory begins: wide loads need it.

Inductor checks at each call of a compiled graph that inputs assumed aligned are (and copies those that are not), names
the others in ``unaligned_buffers``, and the runtime's own allocations begin at multiples of more than 16 bytes. Inputs
of eager programs may begin anywhere.
"""

from __future__ import annotations

from typing import Any, cast

import sympy
from torch._inductor.ir import NonOwningLayout
from torch._inductor.utils import get_dtype_size
from torch._inductor.virtualized import V

# The widest load or store of one invocation, and what Inductor promises of inputs; bytes.
WIDEST = 16


def divides(n: int, expr: Any) -> bool:
    """Whether ``expr`` (a size, stride or offset) is known to be a multiple of ``n``, without a guard."""
    return n == 1 or bool(V.graph.sizevars.statically_known_multiple_of(sympy.sympify(expr), n))


def begins_aligned(name: str) -> bool:
    """Whether buffer ``name`` begins at a multiple of WIDEST bytes."""
    graph = V.graph
    name = graph.scheduler.mutation_real_name.get(name, name) if graph.scheduler is not None else name
    if name in graph.unaligned_buffers:
        return False
    if name in graph.constants:
        constant = graph.constants[name]
        return constant.storage_offset() * constant.element_size() % WIDEST == 0
    if name in graph.graph_inputs:
        return True
    buffer = graph.try_get_buffer(name)
    if buffer is None or not buffer.has_tensor_output():
        return False
    layout = cast(Any, buffer).layout
    return not isinstance(layout, NonOwningLayout) or divides(WIDEST, layout.view.get_layout().offset)


def vector_width(operand: Any, contiguous: int, widest: int = WIDEST) -> int:
    """Elements (a power of two) that one load of at most ``widest`` bytes may take along dimension ``contiguous``.

    ``operand``: a buffer or a strided view of one. Every row along that dimension begins at a multiple of the width
    and has a multiple of it; 1 where nothing is known.
    """
    layout, nbytes = operand.get_layout(), get_dtype_size(operand.get_dtype())
    if not begins_aligned(operand.get_name()) or layout.stride[contiguous] != 1:
        return 1
    others = [s for i, s in enumerate(layout.stride) if i != contiguous % len(layout.stride)]
    width = max(1, widest // nbytes)
    while width > 1 and not all(divides(width, e) for e in (layout.size[contiguous], layout.offset, *others)):
        width //= 2
    return width
