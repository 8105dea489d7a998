"""Operators written in other operators, for graphs of this device alone: AOTAutograd replaces them while it traces.

One module a family, each with a ``TABLE`` from overload to function; they go in front of Inductor's own decompositions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkinductor.device.registry import registry

from . import (
    averages,
    ctc,
    distances,
    elementwise,
    embedding,
    grid_sampling,
    histograms,
    margins,
    normalisation,
    ordering,
    padding,
    products,
    random,
    resampling,
    scatters,
    segments,
    transformer,
    windows,
)

OURS: dict[Any, Callable[..., Any]] = {
    **averages.TABLE,
    **ctc.TABLE,
    **distances.TABLE,
    **elementwise.TABLE,
    **embedding.TABLE,
    **grid_sampling.TABLE,
    **histograms.TABLE,
    **margins.TABLE,
    **normalisation.TABLE,
    **ordering.TABLE,
    **padding.TABLE,
    **products.TABLE,
    **random.TABLE,
    **resampling.TABLE,
    **scatters.TABLE,
    **segments.TABLE,
    **transformer.TABLE,
    **windows.TABLE,
}


class Table(dict[Any, Callable[..., Any]]):
    """Decompositions that pickle as what makes them.

    Inductor puts them into its cache key (torch 2.13 on) and caches nothing that it cannot pickle, functions of a
    module among it. What they are is in the key by `cache_key`.
    """

    def __reduce__(self) -> Any:
        return table, ()


def table() -> Table:
    """Inductor's decompositions under its present configuration, and in front of them ours, then users'."""
    from torch._inductor.decomposition import select_decomp_table

    users = {entry.op: entry.function for entry in registry.operators.values() if entry.function is not None}
    return Table({**select_decomp_table(), **OURS, **users})
