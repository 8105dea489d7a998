"""Positions and masks as sums: an integer tensor that is a constant, indices of its own dimensions and scalars.

`arange(S) <= position + arange(L)[:, None]` is the rule `position + i - j >= 0`, however it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .nodes import CASTS, aten, is_call, prims, shape, value

_VIEWS = (aten.unsqueeze.default, aten.expand.default, aten.reshape.default, aten.view.default, aten.clone.default)
_ANDS = (aten.bitwise_and.Tensor, aten.logical_and.default)
# Comparison -> (whether the second operand is the greater, what is subtracted from the difference).
_COMPARISONS = {
    aten.le.Tensor: (True, 0),
    aten.lt.Tensor: (True, 1),
    aten.ge.Tensor: (False, 0),
    aten.gt.Tensor: (False, 1),
    aten.le.Scalar: (True, 0),
    aten.lt.Scalar: (True, 1),
    aten.ge.Scalar: (False, 0),
    aten.gt.Scalar: (False, 1),
}


@dataclass(frozen=True)
class Sum:
    """constant + sum of coefficients[d] * (index along dimension d) + sum of count * (value of node, one element)."""

    constant: int
    coefficients: tuple[int, ...] = ()
    scalars: tuple[tuple[torch.fx.Node, int], ...] = ()

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        """The sum (sign 1) or difference (-1), broadcast as tensors are."""
        rank = max(len(self.coefficients), len(other.coefficients))
        mine, others = ((0,) * (rank - len(c)) + c for c in (self.coefficients, other.coefficients))
        counts = dict(self.scalars)
        for node, count in other.scalars:
            counts[node] = counts.get(node, 0) + sign * count
        return Sum(
            self.constant + sign * other.constant,
            tuple(a + sign * b for a, b in zip(mine, others, strict=True)),
            tuple((node, count) for node, count in counts.items() if count),
        )


def _viewed(node: torch.fx.Node, inner: Sum, sizes: tuple[Any, ...]) -> Sum | None:
    """``inner`` of dimensions ``sizes`` after the view ``node``; None where that mixes dimensions."""
    after = shape(node)
    assert after is not None
    if is_call(node, aten.clone.default):
        return inner
    if is_call(node, aten.expand.default):
        return Sum(inner.constant, (0,) * (len(after) - len(sizes)) + inner.coefficients, inner.scalars)
    # Dimensions of one element come and go; the others keep their order.
    kept = [(n, c) for n, c in zip(sizes, inner.coefficients, strict=True) if n != 1]
    others = [n for n in after if n != 1]
    if len(kept) != len(others) or any(a[0] != b for a, b in zip(kept, others, strict=True)):
        return None
    left = iter(c for _, c in kept)
    return Sum(inner.constant, tuple(0 if n == 1 else next(left) for n in after), inner.scalars)


def sum_of(node: Any) -> Sum | None:
    """An integer (or tensor of integers) as a sum; None for anything else."""
    if isinstance(node, int) and not isinstance(node, bool):
        return Sum(node)
    held = value(node)
    if held is None or held.is_floating_point() or held.dtype == torch.bool:
        return None
    sizes = tuple(held.shape)
    found: Sum | None = None
    if is_call(node, prims.iota.default):
        start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
        if isinstance(start, int) and isinstance(step, int):
            found = Sum(start, (step if sizes[0] != 1 else 0,))
    elif is_call(node, *CASTS) and not value(node.args[0]).is_floating_point():
        found = sum_of(node.args[0])
    elif is_call(node, *_VIEWS):
        inner = sum_of(node.args[0])
        found = None if inner is None else _viewed(node, inner, shape(node.args[0]) or ())
    elif is_call(node, aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar) and not node.kwargs:
        a, b = (sum_of(x) for x in node.args)
        sign = -1 if is_call(node, aten.sub.Tensor, aten.sub.Scalar) else 1
        found = None if a is None or b is None else a.plus(b, sign)
    if found is None and all(n == 1 for n in sizes) and held.dtype == torch.int64:
        found = Sum(0, (0,) * len(sizes), ((node, 1),))
    return found


@dataclass(frozen=True)
class Residue:
    """A part of a mask that is no rule: a node, a view of a part, or what two parts have in common."""

    node: torch.fx.Node
    parts: tuple[Residue, ...] = ()


def rules_of(node: Any) -> tuple[list[tuple[Sum, Residue]], Residue | None]:
    """A bool tensor as rules, each a sum that is not negative where it is true, and what is none; all hold together.

    Each rule comes with what it is otherwise."""
    if is_call(node, *_ANDS):
        (left, rest), (right, other) = (rules_of(x) for x in node.args)
        both = [x for x in (rest, other) if x is not None]
        return left + right, Residue(node, tuple(both)) if len(both) == 2 else both[0] if both else None
    if is_call(node, aten.full.default) and node.args[1] is True:
        return [], None
    if is_call(node, *_VIEWS):
        sizes = shape(node.args[0]) or ()
        rules, rest = rules_of(node.args[0])
        seen: list[tuple[Sum, Residue]] = []
        for rule, otherwise in rules:
            # A rule may have fewer dimensions than what it was combined with.
            padded = Sum(rule.constant, (0,) * (len(sizes) - len(rule.coefficients)) + rule.coefficients, rule.scalars)
            after = _viewed(node, padded, sizes)
            if after is None:
                return [], Residue(node)
            seen.append((after, Residue(node, (otherwise,))))
        return seen, None if rest is None else Residue(node, (rest,)) if rules else Residue(node)
    if isinstance(node, torch.fx.Node) and node.target in _COMPARISONS:
        turned, least = _COMPARISONS[node.target]
        a, b = (sum_of(x) for x in node.args)
        if a is not None and b is not None:
            difference = b.plus(a, -1) if turned else a.plus(b, -1)
            return [
                (Sum(difference.constant - least, difference.coefficients, difference.scalars), Residue(node))
            ], None
    return [], Residue(node)


@dataclass(frozen=True)
class Visible:
    """What a mask means for queries at position + i: see vkinductor.attention_step. ``rest``: what more has to hold."""

    causal: bool = False
    window: int = 0
    start: torch.fx.Node | None = None
    rest: tuple[Residue, ...] = ()


def visible(mask: torch.fx.Node, position: torch.fx.Node, length: int) -> Visible:
    """A bool mask [B, H, L, S] of ``length`` queries from ``position`` on, taken apart."""
    causal, window, start = False, 0, None
    rules, residue = rules_of(mask)
    rest = [] if residue is None else [residue]
    along = 1 if length > 1 else 0
    for rule, otherwise in rules:
        *outer, i, j = (0, 0, *rule.coefficients)
        scalars = dict(rule.scalars)
        here = scalars.pop(position, 0)
        if any(outer):
            rest.append(otherwise)
        elif (i, j, here, rule.constant) == (along, -1, 1, 0) and not scalars:
            causal = True
        elif (i, j, here) == (-along, 1, -1) and rule.constant >= 0 and not scalars:
            window = min(window or rule.constant + 1, rule.constant + 1)
        elif (i, j, here, rule.constant) == (0, 1, 0, 0) and list(scalars.values()) == [-1] and start is None:
            (start,) = scalars
        else:
            rest.append(otherwise)
    return Visible(causal, window, start, tuple(rest))
