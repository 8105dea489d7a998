"""Rows of a table by token that linear layers read: their kernel finds the rows in the table.

The first layer of a decoder has them, and what adds its result to the rows gathers them in its own kernel, so that the
kernel that only copies rows disappears. Runs after the linear layers' pass. Rows in blocks are dequantised where they
lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from vkinductor.device.fused_linear import TOKENS, fused_linear
from vkinductor.device.quantized import dequantize, dequantize_rows

from .. import compat
from .linear import Maker
from .match import Match
from .nodes import behind, is_call, is_stored, sizes, uses, value

aten = torch.ops.aten

_LINEAR, _BLOCKS = "rows of a table + linear", "rows of a table + dequantize"


def apply(graph: Graph) -> Iterable[Match]:
    """Replace what is found in ``graph``."""
    matches: list[Match] = []
    for node in list(graph.nodes):
        if is_call(node, dequantize):
            matches += _blocks(graph, node)
        elif is_call(node, fused_linear) and node.kwargs.get("tokens") is None:
            matches += _rows(graph, node)
    return matches


def gathered(node: Any) -> tuple[Node, Node] | None:
    """(table [V, K], tokens of integers) of which ``node`` is the rows [..., K] named by tokens."""
    if is_call(node, aten.embedding.default):
        table, tokens = node.args[:2]
    elif is_call(node, aten.index.Tensor) and len(node.args[1]) == 1:
        table, (tokens,) = node.args
    else:
        return None
    if value(table) is None or value(tokens) is None or len(value(table).shape) != 2:
        return None
    return (table, tokens) if value(tokens).dtype in TOKENS else None


def _missed(table: Node, tokens: Node) -> str:
    if sizes(table) is None or value(table).stride(-1) != 1 or not is_stored(table):
        return "the table does not lie in memory, row after row"
    if sizes(tokens) is None:
        return "the number of rows varies"
    # Only indices of Inductor's kernels are checked.
    return "indices are checked" if compat.setting("check_bounds") else ""


def _rows(graph: Graph, node: Node) -> Iterable[Match]:
    rows = behind(node.args[0])  # type: ignore[arg-type]
    found = gathered(rows)
    if found is None:
        return []
    table, tokens = found
    missed = _missed(table, tokens)
    readers = [user for user in uses(rows) if not is_call(user, fused_linear)]
    if not missed and not all(is_call(user, aten.add.Tensor) for user in readers):
        # Those would each have a kernel that gathers, or one that gathers for all of them.
        missed = "something that is no sum uses the rows as well"
    if missed:
        return [Match(_LINEAR, node.name, missed)]
    make = Maker(graph, node)
    flat = make.shaped(tokens, (math.prod(sizes(tokens) or ()),))
    with graph.inserting_before(node):
        new = make(fused_linear, table, *node.args[1:], **dict(node.kwargs) | {"tokens": flat})
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return [Match(_LINEAR, node.name)]


def _blocks(graph: Graph, node: Node) -> Iterable[Match]:
    packed, number, dtype = node.args
    rows = behind(packed)  # type: ignore[arg-type]
    found = gathered(rows)
    shape = sizes(node)
    if found is None or shape is None:
        return []
    table, tokens = found
    missed = _missed(table, tokens)
    if missed or any(user is not node for user in uses(rows)):
        return [Match(_BLOCKS, node.name, missed or "something else uses the rows in blocks")]
    make = Maker(graph, node)
    flat = make.shaped(tokens, (math.prod(sizes(tokens) or ()),))
    new = make(dequantize_rows, table, flat, number, dtype)
    node.replace_all_uses_with(make.shaped(new, shape))
    graph.erase_node(node)
    return [Match(_BLOCKS, node.name)]
