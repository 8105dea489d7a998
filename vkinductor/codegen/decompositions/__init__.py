"""Operators written in other operators, for graphs of this device alone: AOTAutograd replaces them while it traces.

One module a family, each with a ``TABLE`` from overload to function; they go in front of Inductor's own decompositions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkinductor.device.registry import registry

from . import distances, elementwise, histograms, ordering, products, scatters

OURS: dict[Any, Callable[..., Any]] = {
    **distances.TABLE,
    **elementwise.TABLE,
    **histograms.TABLE,
    **ordering.TABLE,
    **products.TABLE,
    **scatters.TABLE,
}


def table() -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions under its present configuration, and in front of them ours, then users'."""
    from torch._inductor.decomposition import select_decomp_table

    users = {entry.op: entry.function for entry in registry.operators.values() if entry.function is not None}
    return {**select_decomp_table(), **OURS, **users}
