"""Sums over a dimension in which one element at most is not zero, as in the gradient of a loss by class: that element.

The gradient of log-softmax sums what comes from the loss over the classes, and Inductor writes that as a choice between
a constant, at the target, and zero. Without the sum the whole gradient is elementwise: a kernel that reads each row
once and waits for nothing, instead of one that reduces zeros before it begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch.fx import Graph, Node

from .making import call
from .match import Match
from .nodes import CASTS, aten, is_call, is_tensor, number, pairs, prims, same, uncast, value

_PATTERN = "sum of a one-hot row"
_SHAPES = (aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.expand.default)


def apply(graph: Graph) -> Iterable[Match]:
    """Replace what is found in ``graph``."""
    matches: list[Match] = []
    for node in list(graph.nodes):
        dim = _summed(node)
        if dim is not None:
            matches += _replaced(graph, node, dim)
    return matches


def _summed(node: Any) -> int | None:
    """The only dimension that ``node``, a sum of floats on our device that keeps it, sums."""
    if not is_call(node, aten.sum.dim_IntList) or not is_tensor(node.args[0]) or len(node.args) < 3:
        return None
    x, dims, keeps = node.args[:3]
    found = value(x)
    if not keeps or not isinstance(dims, Sequence) or len(dims) != 1 or found.device.type != "vulkan":
        return None
    return int(dims[0]) % found.dim() if found.is_floating_point() and found.dim() else None


def _replaced(graph: Graph, node: Node, dim: int) -> Iterable[Match]:
    x: Any = node.args[0]
    product, dim = _beneath(uncast(x), dim)
    dims = value(product).dim()
    for choice, factor in pairs(product, aten.mul.Tensor):
        where = uncast(choice)
        chosen = _chosen(where, dim, dims)
        if chosen is None or not _is_of_row(factor, dim, dims):
            continue
        shape = [1 if i == dim else size for i, size in enumerate(value(product).shape)]
        # Sizes that vary are no arguments of an operator here.
        varies = not all(isinstance(size, int) for size in shape)
        if varies and not (_has(node, shape) and (_has(factor, shape) or _has(chosen[0], shape))):
            continue
        with graph.inserting_before(node):
            one = _cast_like(graph, node, _element(graph, node, where, *chosen), choice)
            one = call(graph, aten.mul.Tensor, (one, factor), node)
            # The other elements are zero times the factor. (Said as a product, Mesa 22.3's lavapipe makes zero of it.)
            infinite = call(graph, aten.isinf.default, (factor,), node)
            one = call(graph, aten.where.ScalarSelf, (infinite, math.nan, one), node)
            one = _cast_like(graph, node, _cast_like(graph, node, one, x), node)
            for target, wanted in ((aten.expand.default, shape), (aten.reshape.default, value(node).shape)):
                one = one if _has(one, wanted) else call(graph, target, (one, list(wanted)), node)
        node.replace_all_uses_with(one)
        graph.erase_node(node)
        return [Match(_PATTERN, node.name)]
    return []


def _beneath(node: Node, dim: int) -> tuple[Node, int]:
    """What ``node`` shows with dimensions of one element more or fewer, and which of its own ``dim`` is there."""
    while is_call(node, *_SHAPES, aten.squeeze.dim, aten.squeeze.dims) and is_tensor(node.args[0]):
        before, after = value(node.args[0]).shape, value(node).shape
        own, there = ([i for i, size in enumerate(sizes) if not same(size, 1)] for sizes in (before, after))
        if dim not in there or len(own) != len(there):
            break
        if not all(same(before[i], after[j]) for i, j in zip(own, there, strict=True)):
            break
        node, dim = uncast(node.args[0]), own[there.index(dim)]
    return node, dim


def _chosen(node: Any, dim: int, dims: int) -> tuple[Node, Any] | None:
    """(place, how many there are) where ``node`` of ``dims`` dimensions is zero but at one place along ``dim``."""
    if not is_call(node, aten.where.self) or not is_tensor(node) or value(node).dim() != dims:
        return None
    equal, constant, zero = node.args[0], number(node.args[1]), number(node.args[2])
    if constant is None or zero != 0.0:
        return None
    for place, positions in pairs(equal, aten.eq.Tensor):
        length = _positions(positions, dim, dims)
        while is_call(place, aten.expand.default) and is_tensor(place):
            place = place.args[0]
        # Between two positions would be none.
        whole = is_tensor(place) and not value(place).is_floating_point()
        if length is not None and whole and _is_of_row(place, dim, dims):
            return place, length
    return None


def _positions(node: Any, dim: int, dims: int) -> Any:
    """How many positions from 0 on ``node`` has along ``dim``, where it has nothing else; None for another node."""
    shape = value(node).shape if is_tensor(node) else ()
    while is_call(node, *_SHAPES):
        node = node.args[0]
    if not is_call(node, prims.iota.default) or (node.kwargs.get("start"), node.kwargs.get("step")) != (0, 1):
        return None
    length, own = node.args[0], value(node).shape[0]
    sizes = [1] * (dims - len(shape)) + list(shape)
    along = len(sizes) == dims and all(same(size, own if i == dim else 1) for i, size in enumerate(sizes))
    return length if along and not same(own, 1) else None


def _is_of_row(node: Any, dim: int, dims: int) -> bool:
    """Whether ``node`` is the same all along ``dim`` of ``dims`` dimensions."""
    if not is_tensor(node):
        return False
    own = dim - (dims - value(node).dim())
    return own < 0 or same(value(node).shape[own], 1)


def _element(graph: Graph, node: Node, where: Node, place: Node, length: Any) -> Node:
    """The one element of ``where`` that may not be zero. A place beyond the row is none of its positions."""
    above = call(graph, aten.ge.Scalar, (place, 0), node)
    below = call(graph, aten.lt.Scalar, (place, length), node)
    inside = call(graph, aten.logical_and.default, (above, below), node)
    return call(graph, aten.where.self, (inside, *where.args[1:3]), node)


def _has(node: Node, shape: Sequence[Any]) -> bool:
    own = value(node).shape
    return len(own) == len(shape) and all(map(same, own, shape))


def _cast_like(graph: Graph, node: Node, x: Node, like: Any) -> Node:
    dtype = value(like).dtype
    return x if value(x).dtype == dtype else call(graph, CASTS[0], (x, dtype), node)
