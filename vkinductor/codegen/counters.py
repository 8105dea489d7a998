"""Counters by which workgroups of a dispatch learn who is the last: zero before each dispatch, which leaves them so."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.virtualized import V

from .template_kernel import realized

# Of the buffer that all kernels of a graph use in turn.
_SHARED = 1024


def counters(count: int, device: torch.device) -> Any:
    """A buffer of at least ``count`` zeros (int32), up to 1024 the same for all kernels of the graph."""
    graph: Any = V.graph
    made = getattr(graph, "vkinductor_counters", None)
    if made is None or count > _SHARED:
        made = lowering.full([max(count, _SHARED)], 0, dtype=torch.int32, device=device)
        made.realize()
        if count <= _SHARED:
            graph.vkinductor_counters = made
    return realized(made)
