"""Operators written in other operators, for graphs of this device alone: AOTAutograd replaces them while it traces.

One module a family, each with a ``TABLE`` from overload to function; they go in front of Inductor's own decompositions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import normalisation, products, resampling, windows

OURS: dict[Any, Callable[..., Any]] = {
    **products.TABLE,
    **normalisation.TABLE,
    **resampling.TABLE,
    **windows.TABLE,
}


def table() -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions under its present configuration, and ours in front of them."""
    from torch._inductor.decomposition import select_decomp_table

    return {**select_decomp_table(), **OURS}
