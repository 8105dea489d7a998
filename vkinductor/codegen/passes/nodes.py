"""Walking a post-grad graph: past views and casts, towards what makes a value and what uses it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten
prims = torch.ops.prims

CASTS = (prims.convert_element_type.default, aten._to_copy.default)

# Operators that give the elements of their first argument in order, if there are as many.
_VIEWS = frozenset(
    (
        aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.squeeze.dim, aten.squeeze.dims,
        aten.squeeze.default, aten.unsqueeze.default, aten.expand.default, aten.clone.default, aten.alias.default,
        aten.slice.Tensor, aten.select.int,
    )
)  # fmt: skip

# What a tensor that is given to the graph may be seen through and still lies in memory.
_STRIDED = _VIEWS - {aten.clone.default, aten.reshape.default} | {
    aten.permute.default, aten.t.default, aten.transpose.int, aten.split.Tensor, aten.split_with_sizes.default,
}  # fmt: skip


def value(node: Any) -> Any:
    """The fake tensor of a node, None for anything else."""
    found = node.meta.get("val") if isinstance(node, Node) else None
    return found if isinstance(found, torch.Tensor) else None


def is_tensor(node: Any) -> bool:
    """Whether ``node`` is a node with one tensor."""
    return value(node) is not None


def is_call(node: Any, *targets: Any) -> bool:
    """Whether a node calls one of these."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def shape(node: Any) -> tuple[Any, ...] | None:
    """Its sizes, None for what is no tensor."""
    found = value(node)
    return None if found is None else tuple(found.shape)


def sizes(node: Any) -> tuple[int, ...] | None:
    """The same if all of them are known, else None."""
    found = shape(node)
    return found if found is not None and all(isinstance(s, int) for s in found) else None


def pairs(node: Any, target: Any) -> list[tuple[Any, Any]]:
    """The operands of a commutative binary call, both ways round; none for another node."""
    if not is_call(node, target) or len(node.args) != 2 or node.kwargs.get("alpha", 1) != 1:
        return []
    a, b = node.args
    return [(a, b), (b, a)]


def is_view(node: Any) -> bool:
    """Whether ``node`` has its argument's elements in order, in rows of the same length."""
    if not (is_tensor(node) and is_call(node, *_VIEWS) and is_tensor(node.args[0])):
        return False
    before, after = value(node.args[0]).shape, value(node).shape
    if not before or not after or not same(before[-1], after[-1]):
        return False
    return same(math.prod(before), math.prod(after))


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal, of those that vary, too."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(a == b))


def is_cast(node: Any) -> bool:
    """Whether ``node`` converts one floating dtype to another."""
    if not (is_tensor(node) and is_call(node, *CASTS)):
        return False
    return bool(value(node).is_floating_point() and value(node.args[0]).is_floating_point())


def uncast(node: Any) -> Any:
    """What a chain of casts between floating dtypes began with."""
    while is_cast(node):
        node = node.args[0]
    return node


def behind(node: Node, casts: bool = False, passed: set[Node] | None = None) -> Node:
    """What ``node`` shows when views (and casts) are taken away; these are added to ``passed``."""
    while is_view(node) or (casts and is_cast(node)):
        if passed is not None:
            passed.add(node)
        node = node.args[0]  # type: ignore[assignment]
    return node


def uses(node: Node) -> Iterable[Node]:
    """What uses ``node`` or a view of it."""
    for user in node.users:
        if is_view(user):
            yield from uses(user)
        else:
            yield user


def is_stored(node: Node) -> bool:
    """Whether ``node`` lies in memory before the graph runs: an input, a constant, or a strided part of one."""
    while node.op == "call_function":
        if node.target is not getitem and node.target not in _STRIDED:
            return False
        node = node.args[0]  # type: ignore[assignment]
    return node.op in ("placeholder", "get_attr")


def vector(node: Any, length: int) -> bool:
    """Whether ``node`` has ``length`` elements in its last dimension and no other."""
    if not is_tensor(node):
        return False
    known = sizes(node)
    return known is not None and known[-1:] == (length,) and math.prod(known) == length


def number(argument: Any) -> float | None:
    """A constant argument: a Python number, or a tensor of one that the graph makes."""
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return float(argument)
    if not is_call(argument, aten.full.default, aten.scalar_tensor.default):
        return None
    held = argument.args[1 if argument.target is aten.full.default else 0]
    return float(held) if isinstance(held, (int, float)) else None


def part_of(node: Any) -> tuple[Node, int, int] | None:
    """(the node it is cut from, first column, the one after the last), if ``node`` is a cut of a last dimension."""
    if not is_tensor(node) or node.op != "call_function":
        return None
    source, columns = node.args[0], sizes(node)
    if columns is None:
        return None
    if node.target is aten.slice.Tensor:
        dim: Any = node.args[1] if len(node.args) > 1 else 0
        start: Any = node.args[2] if len(node.args) > 2 else 0
        whole = sizes(source)
        if whole is None or dim % len(whole) != len(whole) - 1 or (len(node.args) > 4 and node.args[4] != 1):
            return None
        first = start + whole[-1] if start < 0 else start
        return source, first, first + columns[-1]
    if node.target is getitem and source.target in (aten.split.Tensor, aten.split_with_sizes.default):
        split, index = source, node.args[1]
        dim = split.args[2] if len(split.args) > 2 else 0
        whole = sizes(split.args[0])
        if whole is None or dim % len(whole) != len(whole) - 1:
            return None
        parts = [v.shape[-1] for v in split.meta["val"]]
        return split.args[0], sum(parts[:index]), sum(parts[: index + 1])
    return None
