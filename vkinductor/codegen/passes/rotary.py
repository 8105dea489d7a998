"""Finding rotary position embedding and RMSNorm of heads in front of a key or a query [B, H, L, D]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .making import call
from .nodes import aten, is_call, pairs, part_of, shape, uncast

_SWAP = [0, 2, 1, 3]


@dataclass(frozen=True)
class Heads:
    """Heads as a node, [B, H, L, D], or [B, L, H, D] (``swapped``)."""

    node: torch.fx.Node
    swapped: bool

    def emit(self, graph: torch.fx.Graph) -> torch.fx.Node:
        """[B, H, L, D], at the graph's insertion point."""
        return call(graph, aten.permute.default, (self.node, _SWAP), self.node) if self.swapped else self.node


@dataclass(frozen=True)
class Norm:
    """weight [D], eps and what is added to the weight."""

    weight: torch.fx.Node
    eps: float
    offset: float


@dataclass(frozen=True)
class Rotation:
    """cos and sin [L, R] or [B or 1, L, R], or with 1 at the heads' place as well; whether pairs are neighbours."""

    cos: torch.fx.Node
    sin: torch.fx.Node
    swapped: bool
    interleaved: bool = False

    def emit(self, graph: torch.fx.Graph) -> tuple[torch.fx.Node, torch.fx.Node]:
        """cos and sin [B or 1, L, R], at the graph's insertion point."""
        place = 2 if self.swapped else 1

        def flat(node: torch.fx.Node) -> torch.fx.Node:
            rank = len(shape(node) or ())
            if rank == 2:
                return call(graph, aten.unsqueeze.default, (node, 0), node)
            return node if rank == 3 else call(graph, aten.squeeze.dim, (node, place), node)

        return flat(self.cos), flat(self.sin)


def heads_of(node: Any) -> Heads:
    """Heads without the transposition that made them [B, H, L, D]."""
    if is_call(node, aten.permute.default) and list(node.args[1]) == _SWAP:
        return Heads(node.args[0], True)
    return Heads(node, False)


def _cut(node: Any, start: int, end: int) -> Any:
    """What ``node`` is elements start .. end - 1 of, along the last dimension; None for anything else."""
    found = part_of(node)
    return found[0] if found is not None and found[1:] == (start, end) else None


def _every_second(node: Any, first: int) -> Any:
    """What ``node`` is the elements first, first + 2, ... of, along the last dimension; None for anything else."""
    if not is_call(node, aten.slice.Tensor):
        return None
    inner, dim, start, end, step = (*node.args, *(0, None, None, 1)[len(node.args) - 1 :])[:5]
    sizes = shape(inner) or (0,)
    whole = end is None or end >= sizes[-1]
    return inner if dim % len(sizes) == len(sizes) - 1 and (start or 0, step) == (first, 2) and whole else None


def _turned(node: Any) -> tuple[Any, bool] | None:
    """(x, interleaved) where ``node`` is x with each pair (a, b) as (-b, a)."""
    node = uncast(node)
    if is_call(node, aten.reshape.default, aten.view.default):
        stacked = node.args[0]
        if is_call(stacked, aten.clone.default):
            stacked = stacked.args[0]
        if not is_call(stacked, aten.cat.default) or (shape(stacked) or (0,))[-1] != 2:
            return None
        parts = stacked.args[0]
        if len(parts) != 2 or not all(is_call(p, aten.unsqueeze.default) for p in parts):
            return None
        high, low = (p.args[0] for p in parts)
        if not is_call(high, aten.neg.default):
            return None
        width = shape(node)[-1]  # type: ignore[index]
        x, same = _every_second(high.args[0], 1), _every_second(low, 0)
        return (x, True) if x is not None and x is same else None
    if not is_call(node, aten.cat.default) or len(node.args[0]) != 2:
        return None
    rank, dim = len(shape(node) or ()), node.args[1] if len(node.args) > 1 else 0
    high, low = (uncast(n) for n in node.args[0])
    if dim % rank != rank - 1 or not is_call(high, aten.neg.default):
        return None
    width = shape(node)[-1]  # type: ignore[index]
    x = _cut(uncast(high.args[0]), width // 2, width)
    return (x, False) if x is not None and x is _cut(low, 0, width // 2) else None


def _is_table(node: Any, x: Any, place: int) -> bool:
    """Whether ``node`` can be cos or sin of ``x``: the same for all heads."""
    sizes, of = shape(node), shape(x)
    if sizes is not None and len(sizes) == 2 and place == 1:
        sizes = (1, 1, *sizes)
    return (
        sizes is not None
        and of is not None
        and len(sizes) == 4
        and sizes[place] == 1
        and sizes[3 - place] == of[3 - place]
        and sizes[0] in (1, of[0])
        and sizes[3] == of[3]
    )


def _flat(node: Any, place: int) -> Any:
    """A table before it got a dimension for the heads."""
    added = is_call(node, aten.unsqueeze.default) and len(shape(node) or ()) == 4
    return node.args[0] if added and node.args[1] % 4 == place else node


def _whole_rotation(node: Any, swapped: bool) -> tuple[Any, Rotation] | None:
    place = 2 if swapped else 1
    for plain, turned in pairs(uncast(node), aten.add.Tensor):
        for x, cos in pairs(uncast(plain), aten.mul.Tensor):
            for other, sin in pairs(uncast(turned), aten.mul.Tensor):
                found = _turned(other)
                cos_, sin_ = uncast(cos), uncast(sin)
                tables = _is_table(cos_, x, place) and _is_table(sin_, x, place)
                if found is not None and tables and uncast(found[0]) is uncast(x):
                    return uncast(x), Rotation(_flat(cos_, place), _flat(sin_, place), swapped, found[1])
    return None


def rotation_of(node: Any) -> tuple[Heads, Rotation] | None:
    """What ``node`` [B, H, L, D] is the rotation of, all of each head or its first part; None where it is none."""
    for swapped, inner in {(False, node), (heads_of(uncast(node)).swapped, heads_of(uncast(node)).node)}:
        found = _whole_rotation(inner, swapped)
        if found is None and is_call(uncast(inner), aten.cat.default) and len(uncast(inner).args[0]) == 2:
            part, rest = uncast(inner).args[0]
            found = _whole_rotation(part, swapped)
            if found is not None:
                width, whole = shape(part)[-1], shape(inner)[-1]  # type: ignore[index]
                x = _cut(found[0], 0, width)
                found = (x, found[1]) if x is not None and x is _cut(uncast(rest), width, whole) else None
        if found is not None:
            x = found[0]
            turned = heads_of(x)
            return (turned if not swapped else Heads(x, True)), found[1]
    return None


def norm_of(heads: Heads) -> tuple[Heads, Norm] | None:
    """What ``heads`` are the RMSNorm of, over each head's elements; None where they are none."""
    for outer, scaled in pairs(uncast(heads.node), aten.mul.Tensor):
        weight, offset = uncast(outer), 0.0
        for w, added in pairs(weight, aten.add.Tensor)[:1]:
            if isinstance(added, (int, float)):
                weight, offset = uncast(w), float(added)
        if len(shape(weight) or ()) != 1:
            continue
        for x, root in pairs(uncast(scaled), aten.mul.Tensor):
            eps = _root_mean_square(root, uncast(x))
            if eps is not None:
                return _before(Heads(uncast(x), heads.swapped)), Norm(weight, eps, offset)
    return None


def _before(heads: Heads) -> Heads:
    """Heads without a transposition that lies further in."""
    return heads if heads.swapped else heads_of(heads.node)


def _root_mean_square(node: Any, x: Any) -> float | None:
    """eps where ``node`` is rsqrt(mean(x * x) + eps)."""
    node = uncast(node)
    if not is_call(node, aten.rsqrt.default) or not is_call(node.args[0], aten.add.Tensor):
        return None
    mean, eps = node.args[0].args
    if not isinstance(eps, float) or not is_call(mean, aten.mean.dim) or list(mean.args[1]) not in ([-1], [3]):
        return None
    square = mean.args[0]
    squares = (is_call(square, aten.pow.Tensor_Scalar) and square.args[1] == 2) or (
        is_call(square, aten.mul.Tensor) and square.args[0] is square.args[1]
    )
    return eps if squares and uncast(square.args[0]) is x else None
