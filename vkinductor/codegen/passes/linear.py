"""Linear layers of few rows that share them: one operator with the norm before and the gate after them.

Decoding reads each weight once a token, so that what a launch costs beside its bytes is what can be saved. Rows are few
and known; with more of them products are bound by arithmetic: layers that would each leave a part of the device idle
become one product there, norms and gates stay what they are. A norm goes along if nothing else
wants its result. One linear layer without a norm stays as it is: what is added to it is fused there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from vkinductor.device.fused_linear import DENSE, fused_linear
from vkinductor.runtime import context

from .. import heuristics
from ..fused.tiles import MOST_ROWS, one_product
from .gates import activation
from .linears import Linear, linears
from .making import call
from .match import Match
from .nodes import behind, part_of, sizes, uses, value
from .norms import Norm, norm_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Gate:
    """``node`` = act(first) * second of two linear layers, or of the halves of one; ``swapped``: the second half is
    the first factor."""

    name: str
    node: Node
    layers: tuple[Linear, ...]
    swapped: bool = False


def apply(graph: Graph) -> Iterable[Match]:
    """Replace what is found in ``graph``."""
    groups: dict[Node, list[Linear]] = {}
    for layer in linears(graph):
        groups.setdefault(layer.x, []).append(layer)
    matches: list[Match] = []
    for x, group in groups.items():
        matches += _group(graph, x, group)
    return matches


def _group(graph: Graph, x: Node, group: list[Linear]) -> list[Match]:
    many = _one_product(group)
    if many:
        order = {node: i for i, node in enumerate(graph.nodes)}
        return [Match(_pattern(many, None, None), many[0].node.name, _replace(graph, order, many, None, None))]
    norm, why = _norm(x, group)
    gates = _gates(group)
    gated = {layer.node for gate in gates for layer in gate.layers}
    plain = [layer for layer in group if layer.node not in gated]
    if norm is None and not gates and len(plain) < 2:
        return [Match("norm + linear", group[0].node.name, why)] if why else []
    missed = unserved(group)
    sets: list[tuple[Sequence[Linear], Gate | None]] = [(gate.layers, gate) for gate in gates]
    if len(plain) > 1 or (plain and norm is not None):
        sets.append((plain, None))
    matches = [] if norm is not None or not why or missed else [Match("norm + linear", group[0].node.name, why)]
    order = {node: i for i, node in enumerate(graph.nodes)}
    for layers, gate in sets:
        name = layers[0].node.name
        reason = missed or _replace(graph, order, layers, gate, norm)
        matches.append(Match(_pattern(layers, gate, norm), name, reason))
    return matches


def _pattern(layers: Sequence[Linear], gate: Gate | None, norm: Norm | None) -> str:
    before = "" if norm is None else {"rms": "RMSNorm + ", "layer": "LayerNorm + "}[norm.kind]
    count = "linear" if len(layers) == 1 else f"{len(layers)} linear"
    return f"{before}{count}{f' + {gate.name} gate' if gate else ''}"


def _one_product(group: Sequence[Linear]) -> list[Linear]:
    """Those of ``group`` that are one product of many rows."""
    rows, dense = group[0].rows, [layer for layer in group if layer.format == DENSE and layer.bias is None]
    if rows is None or heuristics.forced("fused_linears") is False or not context.is_open():
        return []
    columns, dtype = [layer.n for layer in dense], value(group[0].x).dtype
    return dense if one_product(context.get().info, rows, columns, group[0].k, dtype) else []


def unserved(group: Sequence[Linear]) -> str:
    """Why no kernel takes these rows; "" if one does."""
    rows = group[0].rows
    if rows is None:
        return "the number of rows varies"
    if rows > MOST_ROWS:
        return f"{rows} rows: more than {MOST_ROWS} are bound by arithmetic"
    forced = heuristics.forced("fused_linears")
    if forced is None and context.is_open() and context.get().info.kind == "cpu":
        # SmolLM2's norm, q, k and v on lavapipe (a busy machine): 1.4 ms in four kernels, 6 to 35 in this one.
        return "a processor has faster kernels for single weights"
    return "" if forced in (None, True) else "turned off"


def _norm(x: Node, group: Sequence[Linear]) -> tuple[Norm | None, str]:
    """The norm that gives ``x``, if only ``group`` uses it; and why one that is there cannot be taken along."""
    found = norm_of(x)
    if found is None:
        return None, ""
    if value(found.x).dtype != value(x).dtype:
        return None, f"rows are {value(found.x).dtype} before the norm and {value(x).dtype} after it"
    own = {layer.node for layer in group}
    for node in found.results:
        for user in uses(node):
            if user not in own and user not in found.results:
                return None, f"{user.name} uses the normalized rows as well"
    return found, ""


def _gates(group: Sequence[Linear]) -> list[Gate]:
    """The products act(a) * b of results of ``group``."""
    leaves: dict[Node, tuple[Linear, int, int]] = {}
    for layer in group:
        leaves[layer.result] = (layer, 0, layer.n)
        for cut in _cuts(layer.result):
            found = part_of(cut)
            if found is not None:
                leaves[cut] = (layer, *found[1:])
    gates: list[Gate] = []
    taken: set[Node] = set()
    for product in _products(leaves):
        for left, right in (product.args, product.args[::-1]):
            gate = _gate(product, left, right, leaves)
            if gate is not None and not taken & {layer.node for layer in gate.layers}:
                taken |= {layer.node for layer in gate.layers}
                gates.append(gate)
                break
    return gates


def _cuts(result: Node) -> Iterable[Node]:
    for user in uses(result):
        if user.target in (aten.split.Tensor, aten.split_with_sizes.default):
            yield from user.users
        else:
            yield user


def _products(leaves: dict[Node, Any]) -> Iterable[Node]:
    """The products that use one of ``leaves`` as it is."""
    found: dict[Node, None] = {}
    for leaf in leaves:
        for user in uses(leaf):
            if user.target is aten.mul.Tensor and not user.kwargs:
                found[user] = None
    return found


def _gate(product: Node, left: Any, right: Any, leaves: dict[Node, tuple[Linear, int, int]]) -> Gate | None:
    """``product`` as act(``left``) * ``right``, if nothing else uses what disappears."""
    if not isinstance(left, Node) or not isinstance(right, Node):
        return None
    second = behind(right)
    found = activation(left, leaves) if second in leaves else None
    if found is None or value(product).dtype != value(second).dtype:
        return None
    name, first, inside = found
    (a, a_from, a_to), (b, b_from, b_to) = leaves[first], leaves[second]
    # What disappears: from the products to this one.
    gone = inside | {product, *_between(a), *_between(b)}
    if any(user not in gone for node in gone - {product} for user in uses(node)):
        return None
    if a is b:
        half = a.n // 2
        parts = {(a_from, a_to), (b_from, b_to)}
        return Gate(name, product, (a,), a_from != 0) if parts == {(0, half), (half, a.n)} else None
    if (a_from, a_to, b_from, b_to) != (0, a.n, 0, b.n) or a.n != b.n:
        return None
    return Gate(name, product, (a, b)) if a.format == b.format else None


def _between(layer: Linear) -> set[Node]:
    """The layer's product, its result, and cuts of that."""
    found = {layer.node, layer.result}
    for user in uses(layer.result):
        if user.target in (aten.split.Tensor, aten.split_with_sizes.default):
            found |= {user, *user.users}
        elif part_of(user) is not None:
            found.add(user)
    return found


def _replace(
    graph: Graph, order: dict[Node, int], layers: Sequence[Linear], gate: Gate | None, norm: Norm | None
) -> str:
    """Put the operator in place of ``layers``. Returns why that cannot be; "" where it has been done."""
    results = [gate.node] if gate is not None else [layer.result for layer in layers]
    anchor = min(results, key=order.__getitem__)
    x = norm.x if norm is not None else layers[0].x
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    extra = [norm.gain, norm.shift] if norm is not None else []
    for operand in (x, *weights, *biases, *extra):
        if operand is not None and order[operand] > order[anchor]:
            return f"{operand.name} is made after {anchor.name}"
    make = Maker(graph, anchor)
    if gate is not None and gate.swapped:
        half = layers[0].n // 2
        weights = [make.rows(weights[0], at, at + half) for at in (half, 0)]
        biases = [None if b is None else make.rows(b, at, at + half) for b in biases for at in (half, 0)]
    rows = make.shaped(x, (layers[0].rows, layers[0].k))
    formats = [layers[0].format] * len(weights) if gate else [layer.format for layer in layers]
    named: dict[str, Any] = {"gate": gate.name} if gate is not None else {}
    if norm is not None:
        named |= {"norm": norm.kind, "eps": norm.eps, "plus_one": norm.plus_one}
        for name, operand in (("gain", norm.gain), ("shift", norm.shift)):
            if operand is not None:
                named[name] = make.shaped(operand, (layers[0].k,))
    whole = make(fused_linear, rows, weights, formats, [b and make.shaped(b, (-1,)) for b in biases], **named)
    column = 0
    for result in results:
        part, shape = whole, sizes(result)
        if len(results) > 1:
            part = make(aten.slice.Tensor, whole, 1, column, column + shape[-1])  # type: ignore[index]
            column += shape[-1]  # type: ignore[index]
        result.replace_all_uses_with(make.shaped(part, shape))
    return ""


class Maker:
    """Adds nodes before ``anchor``, with its origin and their fake values."""

    def __init__(self, graph: Graph, anchor: Node) -> None:
        self.graph, self.anchor = graph, anchor

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        with self.graph.inserting_before(self.anchor):
            return call(self.graph, target, args, self.anchor, kwargs)

    def shaped(self, node: Node, shape: Any) -> Node:
        """``node`` as a tensor of ``shape``."""
        if shape == (-1,):
            return node if value(node).dim() == 1 else self(aten.reshape.default, node, [-1])
        return node if sizes(node) == tuple(shape) else self(aten.reshape.default, node, list(shape))

    def rows(self, node: Node, start: int, end: int) -> Node:
        """Rows of ``node``."""
        return self(aten.slice.Tensor, node, 0, start, end)
