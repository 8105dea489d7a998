"""Passes over the post-grad FX graph: chains of operators that one template of ours does at once become one operator.

Owns their order. Each pass finds its pattern by what is computed, never by a model's name; what does not match stays
with Inductor's fusion. A pass says what matched and what nearly did (`Match`), which `explain` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from . import attention, embedding, head, linear, one_hot
from .match import Match

__all__ = ["MATCHES", "PASSES", "Match", "Pass", "run"]


Pass = Callable[[torch.fx.Graph], Iterable[Match]]

# In this order: what is around attention is looked for in the graph as models write it, what is around linear layers
# when norms have gone into them.
PASSES: tuple[Pass, ...] = (attention.apply, linear.apply, head.apply, embedding.apply, one_hot.apply)

# Where a graph module keeps its matches.
MATCHES = "vkinductor_matches"


def run(module: torch.fx.GraphModule) -> None:
    """Apply all passes to the graph of ``module``, after Inductor's own and before it makes writes in place."""
    matches: list[Match] = []
    for apply in PASSES:
        found = list(apply(module.graph))
        if any(not match.missed for match in found):
            # What one pass has replaced is no user that the next one has to ask about.
            module.graph.eliminate_dead_code()
        matches += found
    if any(not match.missed for match in matches):
        module.graph.lint()
        module.recompile()
    module.meta[MATCHES] = matches
