"""The linear layers of a graph, however they are written, by the rows that they are of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from vkinductor.device.fused_linear import DENSE
from vkinductor.device.quantized import quantized_linear

from .nodes import behind, is_stored, sizes, uses, value, vector

aten = torch.ops.aten

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_TRANSPOSES = (aten.permute.default, aten.t.default, aten.transpose.int)


@dataclass(frozen=True)
class Linear:
    """``result`` = ``x`` [m, k] @ ``weight`` [n, k].T + ``bias`` [n]; the weight may be rows of blocks of a ``format``.

    ``node``: the product; ``result``: that, or the sum with the bias that is all that uses it.
    """

    node: Node
    result: Node
    x: Node
    weight: Node
    format: int
    bias: Node | None
    n: int
    k: int

    @property
    def rows(self) -> int | None:
        """m; None where it varies."""
        shape = sizes(self.x)
        return None if shape is None else math.prod(shape) // self.k


def linears(graph: Graph) -> Iterator[Linear]:
    """Those of the device with float rows and weights that lie in memory, contiguous along k, in the graph's order."""
    for node in graph.nodes:
        found = _linear(node) if node.op == "call_function" else None
        if found is not None:
            yield found


def _linear(node: Node) -> Linear | None:
    read = _product(node)
    if read is None:
        return None
    x, weight, number, bias = read
    shape, columns = value(weight).shape, value(x).shape[-1]
    if value(x).device.type != "vulkan" or value(x).dtype not in _FLOATS or not is_stored(weight):
        return None
    if not all(isinstance(s, int) for s in (*shape, columns)) or 0 in (*shape, columns):
        return None
    if number == DENSE and (value(weight).stride(-1) != 1 or value(weight).dtype != value(x).dtype):
        return None
    if bias is not None and not (vector(bias, shape[0]) and is_stored(bias)):
        return None
    result = node
    if bias is None:
        result, bias = _with_bias(node, shape[0])
    return Linear(node, result, behind(x), weight, number, bias, shape[0], columns)


def _product(node: Node) -> tuple[Node, Node, int, Node | None] | None:
    """(x, weight, format, bias) of a product with a transposed weight."""
    if node.target is quantized_linear:
        x, packed, number, bias = (*node.args, None, None)[:4]
        return x, packed, number, node.kwargs.get("bias", bias)  # type: ignore[return-value]
    if node.kwargs:
        return None
    if node.target is aten.mm.default:
        bias, (x, transposed) = None, node.args
    elif node.target is aten.addmm.default:
        bias, x, transposed = node.args
    else:
        return None
    if not isinstance(transposed, Node) or transposed.target not in _TRANSPOSES:
        return None
    return x, transposed.args[0], DENSE, bias  # type: ignore[return-value]


def _with_bias(node: Node, n: int) -> tuple[Node, Node | None]:
    """The sum of ``node`` with a vector [n] in memory, if that alone uses it."""
    users = list(uses(node))
    if len(users) != 1 or users[0].target is not aten.add.Tensor or len(users[0].args) != 2 or users[0].kwargs:
        return node, None
    total = users[0]
    for rows, other in (total.args, total.args[::-1]):
        fits = vector(other, n) and is_stored(other) and value(other).dim() == 1  # type: ignore[arg-type]
        if fits and isinstance(rows, Node) and behind(rows) is node and value(total).dtype == value(node).dtype:
            return total, other  # type: ignore[return-value]
    return node, None
