"""What torch does at each compilation for logs alone: left out where thousands of graphs are compiled and none is read.

Owns the list of these parts. For processes of checks and tests: a user's process keeps all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

# Module, what holds the function (None: the module), its name, and what stands in for it. Shares are of the time of
# `python -m vkinductor conformance --fast`.
_PARTS: tuple[tuple[str, str | None, str, Callable[..., Any]], ...] = (
    # Flushes the processor's caches and times the guards (9 %).
    ("torch._dynamo.guards", None, "profile_guard_manager", lambda *args: 0.0),
    # Prints each component of a graph's cache key (5 %).
    ("torch._inductor.codecache", "FxGraphCachePickler", "debug_lines", lambda self, details: []),
    # Writes each graph as a program that compiles it again, and the settings of the whole compiler (2 %).
    ("torch._dynamo.repro.after_aot", None, "save_graph_repro", lambda *args, **kwargs: None),
    # Prints each graph, before and after its passes (1 %).
    ("torch.fx.graph_module", "GraphModule", "print_readable", lambda self, *args, **kwargs: ""),
    ("torch._dynamo.utils", None, "_get_dynamo_config_for_logging", lambda: None),
    ("torch._dynamo.utils", None, "_compiler_config_for_logging", lambda: None),
    ("torch._dynamo.utils", None, "_scrubbed_inductor_config_for_logging", lambda: None),
    # Counters of a random number generator that only CUDA graphs need: twelve fake tensors a graph (3 %).
    ("torch._decomp.decompositions_for_rng", "PhiloxStateTracker", "__enter__", lambda self: self),
    ("torch._decomp.decompositions_for_rng", "PhiloxStateTracker", "__exit__", lambda self, *error: None),
    # Looks for the unittest method that asked for a sample, with the source line of every frame (6 %).
    ("torch.testing._internal.common_utils", None, "extract_test_fn", lambda: None),
)


def leave_out(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Replaces the parts in modules that are imported by now. ``put`` sets an attribute (a test's monkeypatch)."""
    for module, holder, name, stand_in in _PARTS:
        place = sys.modules.get(module)
        if place is not None and holder is not None:
            place = getattr(place, holder, None)
        if hasattr(place, name):
            put(place, name, stand_in)
