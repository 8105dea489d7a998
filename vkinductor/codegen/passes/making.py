"""New nodes of a post-grad graph, with the fake values that Inductor lowers by."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .nodes import value

# What a node keeps of the one in whose place it stands: where it comes from, and nothing of its arguments.
_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack", "original_aten", "from_node", "seq_nr")


def evaluated(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
    """The fake result of a call."""
    nodes: list[torch.fx.Node] = []
    given = (tuple(args), dict(kwargs or {}))
    torch.fx.map_arg(given, nodes.append)
    fakes, named = torch.fx.map_arg(given, lambda node: node.meta["val"])
    mode = next((value(n).fake_mode for n in nodes if hasattr(value(n), "fake_mode")), contextlib.nullcontext())
    with mode:
        return target(*fakes, **named)


def kept_meta(node: torch.fx.Node) -> dict[str, Any]:
    """What a node that takes the place of ``node`` has of its meta."""
    return {key: kept for key, kept in node.meta.items() if key in _ORIGIN}


def call(
    graph: torch.fx.Graph,
    target: Any,
    args: Sequence[Any],
    like: torch.fx.Node,
    kwargs: Mapping[str, Any] | None = None,
) -> torch.fx.Node:
    """A new call at the graph's insertion point, with its value and the origin of ``like``."""
    node = graph.call_function(target, tuple(args), dict(kwargs or {}))
    node.meta = kept_meta(like) | {"val": evaluated(target, args, kwargs)}
    return node
