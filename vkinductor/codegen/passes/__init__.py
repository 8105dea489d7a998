"""Passes over the post-grad FX graph: chains of operators that one template of ours does at once become one operator.

Owns their order. Each pass finds its pattern by what is computed, never by a model's name; what does not match stays
with Inductor's fusion. A pass says what matched and what nearly did (`Match`), which `explain` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from . import attention, linear
from .match import Match

__all__ = ["MATCHES", "PASSES", "Match", "Pass", "run"]


Pass = Callable[[torch.fx.Graph], Iterable[Match]]

# In this order: what is around attention is looked for in the graph as models write it.
PASSES: tuple[Pass, ...] = (attention.apply, linear.apply)

# Where a graph module keeps its matches.
MATCHES = "vkinductor_matches"


def run(module: torch.fx.GraphModule) -> None:
    """Apply all passes to the graph of ``module``, after Inductor's own and before it makes writes in place."""
    matches = [match for apply in PASSES for match in apply(module.graph)]
    if any(not match.missed for match in matches):
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()
    module.meta[MATCHES] = matches
