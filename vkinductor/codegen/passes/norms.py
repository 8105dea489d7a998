"""RMSNorm and LayerNorm as models and decompositions write them out, found from their result."""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from .nodes import behind, is_cast, is_stored, is_tensor, number, sizes, value, vector

aten = torch.ops.aten


@dataclass(frozen=True)
class Norm:
    """``kind`` "rms" or "layer" of the rows of ``x``; gain and shift as device/fused_linear.py has them.

    ``results``: the nodes that have a row's normalized values, from where it is scaled to where the norm ends.
    """

    kind: str
    x: Node
    eps: float
    gain: Node | None
    shift: Node | None
    plus_one: bool
    results: frozenset[Node]


def norm_of(node: Node) -> Norm | None:
    """The norm whose result ``node`` is."""
    shape = sizes(node)
    if not shape or shape[-1] == 1:
        return None
    k, results = shape[-1], {node}
    node = behind(node, True, results)
    node, shift = _without(node, aten.add.Tensor, k, results)
    node, gain = _without(node, aten.mul.Tensor, k, results)
    results.add(node)
    scaled = _scaled(node)
    if scaled is None:
        return None
    rows, statistic, eps = scaled
    found = _mean_square(rows, statistic) or _variance(rows, statistic, results)
    if found is None:
        return None
    kind, x = found
    plus_one = False
    if gain is not None:
        gain, plus_one = _plus_one(gain)
    return Norm(kind, x, eps, gain, shift, plus_one, frozenset(results - {x}))


def _without(node: Node, target: Any, k: int, results: set[Node]) -> tuple[Node, Node | None]:
    """``node`` without its last operand, if it is ``target`` of rows and a vector [k] in memory; and that vector."""
    if node.target is not target or len(node.args) != 2 or node.kwargs:
        return node, None
    for rows, other in (node.args, node.args[::-1]):
        if not (is_tensor(rows) and vector(other, k)) or value(rows).shape[-1] != k:
            continue
        found = behind(other, True)  # type: ignore[arg-type]
        if is_stored(_plus_one(found)[0]):
            results.add(node)
            return behind(rows, True, results), found  # type: ignore[arg-type]
    return node, None


def _scaled(node: Node) -> tuple[Node, Node, float] | None:
    """(rows, statistic, eps) of rows / sqrt(statistic + eps)."""
    if node.target is aten.mul.Tensor:
        pairs, roots = (node.args, node.args[::-1]), (aten.rsqrt.default,)
    elif node.target is aten.div.Tensor:
        pairs, roots = (node.args,), (aten.sqrt.default,)  # type: ignore[assignment]
    else:
        return None
    for rows, scale in pairs:
        root: Any = behind(scale, True) if is_tensor(scale) else None  # type: ignore[arg-type]
        if root is None or not is_tensor(rows) or root.target not in roots:
            continue
        total = behind(root.args[0], True)
        if total.target not in (aten.add.Tensor, aten.add.Scalar) or total.kwargs:
            continue
        for statistic, constant in (total.args, total.args[::-1]):
            eps = number(constant)
            if eps is not None and is_tensor(statistic):
                return rows, statistic, eps  # type: ignore[return-value]
    return None


def _raw(node: Any) -> Node:
    """``node`` before casts to a wider dtype."""
    node = behind(node)
    while is_cast(node) and value(node.args[0]).itemsize <= value(node).itemsize:
        node = behind(node.args[0])
    return node


def _over_rows(node: Node, at: int) -> bool:
    """Whether argument ``at`` of a reduction is the last dimension, kept."""
    source = node.args[0]
    dims = node.args[at] if len(node.args) > at else None
    keep = node.args[at + 1] if len(node.args) > at + 1 else node.kwargs.get("keepdim", False)
    rank = value(source).dim()
    return isinstance(dims, (list, tuple)) and [d % rank for d in dims] == [rank - 1] and bool(keep)


def _mean_square(rows: Node, statistic: Node) -> tuple[str, Node] | None:
    mean = behind(statistic, True)
    if mean.target is not aten.mean.dim or not _over_rows(mean, 1):
        return None
    square = behind(mean.args[0], True)  # type: ignore[arg-type]
    if (square.target is aten.pow.Tensor_Scalar and square.args[1] == 2) or (
        square.target is aten.mul.Tensor and square.args[0] is square.args[1]
    ):
        base = square.args[0]
    else:
        return None
    x = _raw(rows)
    return ("rms", x) if _raw(base) is x else None


def _variance(rows: Node, statistic: Node, results: set[Node]) -> tuple[str, Node] | None:
    centred, part = behind(rows, True, results), behind(statistic, True)
    if centred.target is not aten.sub.Tensor or part.target is not getitem or part.args[1] != 0:
        return None
    both = part.args[0]
    if not isinstance(both, Node) or both.target is not aten.var_mean.correction or not _reduces_rows(both):
        return None
    x, mean = centred.args
    mean_part = behind(mean, True)  # type: ignore[arg-type]
    if mean_part.target is not getitem or mean_part.args != (both, 1):
        return None
    results.add(centred)
    raw = _raw(x)
    return ("layer", raw) if _raw(both.args[0]) is raw else None


def _reduces_rows(node: Node) -> bool:
    rank, dims = value(node.args[0]).dim(), node.args[1] if len(node.args) > 1 else None
    named: dict[str, Any] = dict(node.kwargs)
    last = isinstance(dims, (list, tuple)) and [d % rank for d in dims] == [rank - 1]
    return last and bool(named.get("correction") == 0) and bool(named.get("keepdim"))


def _plus_one(gain: Node) -> tuple[Node, bool]:
    if gain.target is aten.add.Tensor and len(gain.args) == 2 and not gain.kwargs:
        for other, constant in (gain.args, gain.args[::-1]):
            if number(constant) == 1 and is_tensor(other):
                return behind(other, True), True  # type: ignore[arg-type]
    return gain, False
