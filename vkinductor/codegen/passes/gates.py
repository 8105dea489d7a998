"""Gates act(first) * second, found by what they compute: the expression between is evaluated and compared."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx import Node

from vkinductor.device.fused_linear import GATES

from .nodes import is_cast, is_tensor, is_view

aten = torch.ops.aten

# Operators of an element that activations are made of.
_POINTWISE = frozenset(
    (
        aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.sub.Tensor, aten.neg.default, aten.exp.default,
        aten.sigmoid.default, aten.tanh.default, aten.erf.default, aten.pow.Tensor_Scalar, aten.relu.default,
        aten.reciprocal.default, aten.clamp_min.default, aten.silu.default, aten.gelu.default, aten.add.Scalar,
        aten.mul.Scalar, aten.div.Scalar, aten.sub.Scalar,
    )
)  # fmt: skip
_MOST_OPERATORS = 24


@functools.cache
def _points() -> torch.Tensor:
    """Where functions are compared."""
    return torch.linspace(-7, 7, 113, dtype=torch.float64, device="cpu")


def activation(node: Node, leaves: dict[Node, Any]) -> tuple[str, Node, set[Node]] | None:
    """(gate, the one of ``leaves`` that it is of, the nodes in between with ``node``), if ``node`` is one of GATES."""
    inside: set[Node] = set()
    found: set[Node] = set()
    todo = [node]
    while todo:
        at = todo.pop()
        if at in leaves:
            found.add(at)
            continue
        if at in inside:
            continue
        if not (is_view(at) or is_cast(at) or at.target in _POINTWISE) or len(inside) == _MOST_OPERATORS:
            return None
        inside.add(at)
        todo += [a for a in at.args if isinstance(a, Node)]
    if len(found) != 1 or not inside:
        return None
    leaf = found.pop()
    points = _points()
    result = _evaluate(node, {leaf: points})
    for name, function in GATES.items():
        if torch.allclose(result, function(points), rtol=1e-6, atol=1e-9):
            return name, leaf, inside
    return None


def _evaluate(node: Node, known: dict[Node, torch.Tensor]) -> torch.Tensor:
    if node not in known:
        if is_view(node) or is_cast(node):
            known[node] = _evaluate(node.args[0], known)  # type: ignore[arg-type]
        else:
            args = [_evaluate(a, known) if is_tensor(a) else a for a in node.args]  # type: ignore[arg-type]
            known[node] = node.target(*args, **node.kwargs)  # type: ignore[operator]
    return known[node]
