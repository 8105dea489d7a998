"""Reading and writing FX graphs for the passes: what a node computes past casts, and new nodes with their values."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten
prims = torch.ops.prims

_CASTS = (prims.convert_element_type.default, aten._to_copy.default)


def value(node: Any) -> Any:
    """The fake tensor of a node, None for anything else."""
    found = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


def is_call(node: Any, *targets: Any) -> bool:
    """Whether a node calls one of these."""
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets


def shape(node: Any) -> tuple[Any, ...] | None:
    """Its sizes, None for what is no tensor."""
    found = value(node)
    return None if found is None else tuple(found.shape)


def uncast(node: Any) -> Any:
    """What a chain of casts between floating-point dtypes began with."""
    while is_call(node, *_CASTS) and value(node) is not None:
        inner = node.args[0]
        if value(inner) is None or not (value(node).is_floating_point() and value(inner).is_floating_point()):
            break
        node = inner
    return node


def pairs(node: Any, target: Any) -> list[tuple[Any, Any]]:
    """The operands of a commutative binary call, both ways round; none for another node."""
    if not is_call(node, target) or len(node.args) != 2 or node.kwargs.get("alpha", 1) != 1:
        return []
    a, b = node.args
    return [(a, b), (b, a)]


def evaluated(target: Any, args: Sequence[Any]) -> Any:
    """The fake result of a call."""
    nodes: list[torch.fx.Node] = []
    torch.fx.map_arg(tuple(args), nodes.append)
    fakes = torch.fx.map_arg(tuple(args), lambda node: node.meta["val"])
    mode = next((value(n).fake_mode for n in nodes if hasattr(value(n), "fake_mode")), contextlib.nullcontext())
    with mode:
        return target(*fakes)


def kept_meta(node: torch.fx.Node) -> dict[str, Any]:
    """What a node that takes the place of ``node`` has of its meta: where it comes from."""
    return {key: kept for key, kept in node.meta.items() if key in ("stack_trace", "nn_module_stack")}


def call(graph: torch.fx.Graph, target: Any, args: Sequence[Any], like: torch.fx.Node) -> torch.fx.Node:
    """A new call at the graph's insertion point, with its value and the rest of the meta of ``like``."""
    node = graph.call_function(target, tuple(args))
    node.meta = kept_meta(like) | {"val": evaluated(target, args)}
    return node
