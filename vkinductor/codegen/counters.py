"""Counters by which workgroups of a dispatch learn who is the last: zero before each dispatch, which leaves them so."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.ir import TensorBox
from torch._inductor.virtualized import V
from torch.utils._python_dispatch import _disable_current_modes

from .template_kernel import realized

# Of the buffer that all kernels of a graph use in turn, which nobody has to fill, a kernel uses so many.
SHARED = 1024
# It has more: calls of a kernel that takes the next ones each time need not wait for each other.
_ALL = 16 * SHARED
_LINE_BYTES = 256


def counters(count: int, device: torch.device) -> Any:
    """A buffer of at least ``count`` zeros (int32), up to 1024 the same for all kernels of the graph.

    What a kernel of that many may take of it by turns is ``turn_bytes`` long.

    It is a constant of the graph, so that no call has to fill it; commands of all calls are ordered by what they write.
    """
    if count > SHARED:
        made = lowering.full([count], 0, dtype=torch.int32, device=device)
        made.realize()
        return realized(made)
    graph: Any = V.graph
    shared: TensorBox | None = getattr(graph, "vkinductor_counters", None)
    if shared is None:
        with _disable_current_modes():
            zeros = torch.zeros(_ALL, dtype=torch.int32, device=device)
        shared = graph.vkinductor_counters = graph.add_tensor_constant(zeros, "counters")
    return realized(shared)


def turn_bytes(count: int) -> int:
    """Bytes of the part of ``counters(count)`` that a launch takes, which does not share cache lines with the next."""
    return -(-count * 4 // _LINE_BYTES) * _LINE_BYTES if count <= SHARED else count * 4
