"""Tables: what costs much an element, is small, and is used all over a larger tensor by many kernels.

The cosines and sines of a rotary embedding are one row a position. Inductor would compute them in each of the kernels
that turn queries and keys, once for each head: 512 positions times 2048 columns of a prompt, 22 layers. Here they are
computed once and read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.virtualized import V

from vkinductor.runtime import context

from . import heuristics

aten, prims = torch.ops.aten, torch.ops.prims

# Kernels that use a table have more elements by this factor, all together.
_FEWEST_READS = 16
_THROUGH = frozenset(
    (
        prims.convert_element_type.default,
        aten._to_copy.default,
        aten.unsqueeze.default,
        aten.expand.default,
        aten.view.default,
        aten.reshape.default,
        aten.permute.default,
    )
)


def realizing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering like ``original`` whose result is kept in memory where it is such a table.

    heuristics.override(tables=True) does so on processors, too, False nowhere.
    """

    def lower(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        forced = heuristics.forced("tables")
        if (context.get().info.kind != "cpu" if forced is None else forced) and _is_table(V.graph.current_node):
            result.realize()
        return result

    return lower


def _is_table(node: torch.fx.Node) -> bool:
    # Another operator's lowering may be made of this one.
    if node.target not in (aten.cos.default, aten.sin.default):
        return False
    uses = list(_uses(node))
    own, *sizes = (n.meta["val"].numel() for n in (node, *uses) if isinstance(n.meta.get("val"), torch.Tensor))
    return (
        len(uses) > 1
        and isinstance(own, int)
        and all(isinstance(size, int) for size in sizes)
        and sum(sizes) >= _FEWEST_READS * own > 0
    )


def _uses(node: torch.fx.Node) -> Any:
    """What uses the values of ``node``, in whatever shape and dtype."""
    for user in node.users:
        if user.target in _THROUGH:
            yield from _uses(user)
        else:
            yield user
