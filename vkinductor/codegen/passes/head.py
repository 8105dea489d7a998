"""The place of the greatest of each row of a linear layer's results: one operator, that need not keep the results.

Decoding ends so: the head's logits, and of them the likeliest token. Runs after the linear layers' pass, so that a norm
before the head goes along.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node

from vkinductor.device.fused_linear import fused_linear
from vkinductor.device.linear_argmax import linear_argmax

from .linear import Maker, unserved
from .linears import linears
from .match import Match
from .nodes import behind, is_cast, is_view, sizes, uses, value

aten = torch.ops.aten

_NAME = "linear + argmax"
# Results of a row among which the last workgroup chooses: with more it takes longer than two dispatches of their own.
# One sequence of halves on an H200: 32,000 rows of 2048 47 us (else 37, and 11 of argmax), 49,152 of 576 24 (23 and
# 11), 128,256 of 2048 160 (124 and 12).
_MOST_RESULTS = 1 << 16


@dataclass(frozen=True)
class Head:
    """``result`` [m, n], rows of a linear layer's results, and the arguments of ``linear_argmax`` but for ``keep``."""

    result: Node
    operands: tuple[Any, ...]
    named: dict[str, Any]
    missed: str = ""


def apply(graph: Graph) -> Iterable[Match]:
    """Replace what is found in ``graph``."""
    places = [node for node in graph.nodes if node.op == "call_function" and node.target is aten.argmax.default]
    if not places:
        return []
    heads = {head.result: head for head in _heads(graph)}
    matches: list[Match] = []
    for place in places:
        source = behind(place.args[0], casts=True)
        head = heads.get(source)
        if head is None:
            continue
        missed = head.missed or _missed(place, head.result)
        if not missed:
            _replace(graph, place, head)
            del heads[source]
        matches.append(Match(_NAME, place.name, missed))
    return matches


def _heads(graph: Graph) -> Iterable[Head]:
    for node in graph.nodes:
        if node.target is not fused_linear or node.op != "call_function":
            continue
        operands: Any = node.args
        x, weights, formats, biases = operands
        if node.kwargs.get("gate") or node.kwargs.get("tokens") is not None or len(weights) > 1:
            continue
        norm = {k: v for k, v in node.kwargs.items() if k in ("norm", "eps", "gain", "shift", "plus_one")}
        yield Head(node, (x, weights[0], formats[0], biases[0]), norm)
    for layer in linears(graph):
        yield Head(layer.result, (layer.x, layer.weight, layer.format, layer.bias), {}, unserved([layer]))


def _missed(place: Node, result: Node) -> str:
    """Why ``place`` is not that of the greatest in rows of ``result``; "" if it is."""
    whole = sizes(result)
    if whole is None:
        return "the number of rows varies"
    if whole[-1] > _MOST_RESULTS:
        return f"{whole[-1]} results of a row: more than {_MOST_RESULTS} are not for one workgroup to choose among"
    rows: Any = place.args[0]
    over = sizes(rows)
    dim: Any = place.args[1] if len(place.args) > 1 else place.kwargs.get("dim")
    if dim is None and over is not None and over[-1] == whole[-1] and whole[:-1] == (1,) * (len(whole) - 1):
        dim = -1
    if over is None or not isinstance(dim, int) or dim % len(over) != len(over) - 1:
        return "argmax is not along the columns of the linear layer"
    # What widens changes no order; a narrower dtype makes equals of what is not.
    node = rows
    while is_view(node) or is_cast(node):
        if value(node).dtype not in (value(result).dtype, torch.float32):
            return f"argmax is of results rounded to {value(node).dtype}"
        node = node.args[0]
    return ""


def _replace(graph: Graph, place: Node, head: Head) -> None:
    result = head.result
    n = value(result).shape[-1]
    x, weight, number, bias = head.operands
    others = [user for user in uses(result) if not _only_for(user, place)]
    # Where others want the results they stand before these, else before the place.
    make = Maker(graph, result if others else place)
    k = value(x).shape[-1]
    rows = make.shaped(x, (value(x).numel() // k, k))
    named = {name: make.shaped(v, (k,)) if name in ("gain", "shift") and v is not None else v
             for name, v in head.named.items()}  # fmt: skip
    bias = None if bias is None else make.shaped(bias, (n,))
    both = make(linear_argmax, rows, weight, number, bias, bool(others), **named)
    found, results = make(getitem, both, 0), make(getitem, both, 1)
    place.replace_all_uses_with(make.shaped(found, sizes(place)))
    graph.erase_node(place)
    if others:
        result.replace_all_uses_with(make.shaped(results, sizes(result)))


def _only_for(user: Node, place: Node) -> bool:
    """Whether what ``user`` gives is seen by ``place`` alone."""
    if user is place:
        return True
    return is_cast(user) and all(_only_for(other, place) for other in uses(user))
