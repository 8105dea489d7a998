"""How the loops of a node are laid over the ranges of a kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

Getter = Callable[[list[sympy.Expr]], sympy.Expr]


def split_whole(
    groups: Sequence[sympy.Expr], lengths: Sequence[Sequence[sympy.Expr]]
) -> tuple[list[list[sympy.Expr]], list[list[Getter]]] | None:
    """The loops as they are, when each group of them fills one range; None otherwise.

    In the form of SIMDKernel._split_iteration_ranges, which divides the expanded product of symbolic sizes and cannot
    always tell that a factor divides it: s0 * (s1 + s2) has none once it is a sum.
    """
    known = V.graph.sizevars.statically_known_equals
    if any(lengths[len(groups) :]):
        return None
    padded = [*lengths[: len(groups)], *[()] * (len(groups) - len(lengths))]
    if not all(_equal(sympy_product(sizes), group) for sizes, group in zip(padded, groups, strict=True)):
        return None
    ranges: list[list[sympy.Expr]] = [[] for _ in groups]
    getters: list[list[Getter]] = []
    count = 0
    for i, sizes in enumerate(lengths):
        getters.append([])
        for size in sizes:
            if known(size, 1):
                getters[-1].append(_zero)
                continue
            ranges[i].append(V.graph.sizevars.simplify(size))
            getters[-1].append(operator.itemgetter(count))
            count += 1
    return ranges, getters


def _equal(a: Any, b: Any) -> bool:
    simplify = V.graph.sizevars.simplify
    return bool(sympy.expand(simplify(sympy.sympify(a)) - simplify(sympy.sympify(b))) == 0)


def _zero(_: Any) -> sympy.Expr:
    return sympy.S.Zero
