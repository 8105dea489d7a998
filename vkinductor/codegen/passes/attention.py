"""Attention over a cache that has just been written becomes one operator with the rotary, norm and mask around it.

The pattern is ``vkinductor.attention`` whose keys and values are caches with new rows put in at positions that follow
a start on the device. See ``vkinductor.attention_step`` (device/attention_step.py) for what the operator does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.codegen.attention.step_tiles import is_served
from vkinductor.codegen.compat import stable_topological_sort
from vkinductor.device.attention import attention
from vkinductor.device.attention_step import attention_step
from vkinductor.runtime import context

from .making import call, evaluated, kept_meta
from .match import Match
from .nodes import aten, is_call, shape, value
from .positions import Residue, sum_of, visible
from .rotary import Heads, Norm, Rotation, heads_of, norm_of, rotation_of

PATTERN = "attention step"

_INDEXED_WRITES = (aten.index_put.default, aten._unsafe_index_put.default)


@dataclass(frozen=True)
class Write:
    """A cache [B, G, S, D] with ``rows`` [B, G, L, D] put in from ``position`` on: ``node``."""

    node: torch.fx.Node
    cache: torch.fx.Node
    rows: torch.fx.Node
    position: torch.fx.Node


def _grouped(node: Any) -> Any:
    """Keys before each head was repeated for the queries that share it."""
    inner = node
    if is_call(inner, aten.reshape.default, aten.view.default):
        inner = inner.args[0]
    if is_call(inner, aten.clone.default):
        inner = inner.args[0]
    if not is_call(inner, aten.expand.default) or len(shape(inner) or ()) != 5:
        return node
    before = inner.args[0]
    if not is_call(before, aten.unsqueeze.default) or before.args[1] not in (2, -3):
        return node
    batch, groups, times, length, width = shape(inner)  # type: ignore[misc]
    repeated = shape(node) == (batch, groups * times, length, width)
    return before.args[0] if repeated and shape(before.args[0]) == (batch, groups, length, width) else node


def _write(node: Any) -> Write | str | None:
    """The write that made a cache; why it is none that is followed; None where it is no write."""
    if is_call(node, aten.slice_scatter.default):
        return "the cache is written at a position that is no tensor"
    if not is_call(node, *_INDEXED_WRITES):
        return None
    cache, indices, rows, *rest = node.args
    if any(rest) or len(indices) != 3 or indices[0] is not None or indices[1] is not None:
        return "the cache is not written along its keys alone"
    places, sizes = sum_of(indices[2]), shape(rows)
    if sizes is None or len(sizes) != 4 or not isinstance(sizes[2], int):
        return "the number of new keys varies"
    step = (1,) if sizes[2] > 1 else (0,)
    if places is None or places.coefficients != step or places.constant or len(places.scalars) != 1:
        return "the new keys' positions do not follow one that the device holds"
    ((position, times),) = places.scalars
    return Write(node, cache, rows, position) if times == 1 else "positions that are multiples"


@dataclass(frozen=True)
class Front:
    """What stands before a query or a key: its heads, rotation and norm."""

    heads: Heads
    rotation: Rotation | None = None
    norm: Norm | None = None


def _front(node: torch.fx.Node) -> Front:
    rotated = rotation_of(node)
    heads, rotation = (heads_of(node), None) if rotated is None else rotated
    normed = norm_of(heads)
    return Front(heads, rotation) if normed is None else Front(normed[0], rotation, normed[1])


def _fronts(q: torch.fx.Node, k: torch.fx.Node) -> tuple[Front, Front, str]:
    """What the operator does of what stands before q and k, and what nearly went into it."""
    fronts = _front(q), _front(k)
    rotations = [f.rotation for f in fronts]
    norms = [f.norm for f in fronts]
    if rotations[0] != rotations[1]:
        return Front(Heads(q, False)), Front(Heads(k, False)), "q and k are not rotated alike"
    if (norms[0] is None) != (norms[1] is None) or (
        norms[0] and norms[1] and (norms[0].eps, norms[0].offset) != (norms[1].eps, norms[1].offset)
    ):
        plain = [rotation_of(node) for node in (q, k)]
        heads = [heads_of(n) if found is None else found[0] for n, found in zip((q, k), plain, strict=True)]
        return Front(heads[0], rotations[0]), Front(heads[1], rotations[1]), "q and k are not normalised alike"
    return (*fronts, "")


def _emitted(graph: torch.fx.Graph, residue: Residue) -> torch.fx.Node:
    """A part of a mask as a node."""
    if not residue.parts:
        return residue.node
    parts = [_emitted(graph, part) for part in residue.parts]
    if parts == list(residue.node.args[: len(parts)]):
        return residue.node
    if len(parts) == 2:
        return call(graph, aten.bitwise_and.Tensor, parts, residue.node)
    node = residue.node
    if is_call(node, aten.reshape.default, aten.view.default):
        # What is left may be smaller than what it was a part of.
        sizes = [n if n == 1 or n in (shape(parts[0]) or ()) else 1 for n in shape(node) or ()]
        return call(graph, aten.reshape.default, (parts[0], sizes), node)
    return call(graph, node.target, (parts[0], *node.args[1:]), node)


def _mask(graph: torch.fx.Graph, mask: Any, write: Write, length: int) -> tuple[Any, bool, int, Any]:
    """(mask that is left, causal, window, start) at the graph's insertion point."""
    if mask is None or value(mask).dtype != torch.bool:
        return mask, False, 0, None
    seen = visible(mask, write.position, length)
    left = [_emitted(graph, residue) for residue in seen.rest]
    rest = left[0] if left else None
    for other in left[1:]:
        rest = call(graph, aten.bitwise_and.Tensor, (rest, other), mask)
    while rest is not None and len(shape(rest) or ()) < 4:
        rest = call(graph, aten.unsqueeze.default, (rest, 0), mask)
    return rest, seen.causal, seen.window, seen.start


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, keys: Write, values: Write) -> str:
    """Put the operator in the place of ``node``; returns what nearly went into it."""
    q, _, _, mask, _, scale = node.args
    assert isinstance(q, torch.fx.Node)
    front, new, missed = _fronts(q, keys.rows)
    length = shape(q)[2]  # type: ignore[index]
    with graph.inserting_before(node):
        left, causal, window, start = _mask(graph, mask, keys, length)
        cos, sin = front.rotation.emit(graph) if front.rotation is not None else (None, None)
        given = {
            "q": front.heads.emit(graph),
            "k": new.heads.emit(graph),
            "v": values.rows,
            "position": keys.position,
            "cos": cos,
            "sin": sin,
            "q_weight": front.norm and front.norm.weight,
            "k_weight": new.norm and new.norm.weight,
            "mask": left,
            "start": start,
            "slopes": None,
            "scale": scale,
            "causal": causal,
            "window": window,
            "softcap": 0.0,
            "eps": front.norm.eps if front.norm else 0.0,
            "weight_offset": front.norm.offset if front.norm else 0.0,
            "interleaved": front.rotation is not None and front.rotation.interleaved,
        }
        caches = [keys.cache, values.cache]
        bases = {"_key_cache_base_index": 0, "_value_cache_base_index": 1, "_all_bases": caches}
        step = graph.call_function(torch.ops.higher_order.auto_functionalized_v2, (attention_step,), given | bases)
        order = [a.name for a in attention_step._schema.arguments]
        full = given | {"key_cache": keys.cache, "value_cache": values.cache}
        out = evaluated(attention_step, tuple(full[name] for name in order))
        step.meta = kept_meta(node) | {"val": (out, *(value(c) for c in caches))}
        results = [call(graph, operator.getitem, (step, i), node) for i in range(3)]
    for user in list(node.users):
        user.replace_all_uses_with(results[0])
        graph.erase_node(user)
    graph.erase_node(node)
    for write, result in zip((keys, values), results[1:], strict=True):
        write.node.replace_all_uses_with(result)
    return missed


def _refusal(node: torch.fx.Node, keys: Write, values: Write) -> str:
    """Why an attention over written caches stays what it is; "" where it does not."""
    q, _, _, _, causal, scale = node.args
    sizes = shape(q) or ()
    if keys.position is not values.position:
        return "keys and values go to different positions"
    if causal:
        return "causal from the cache's beginning"
    if not all(isinstance(n, int) for n in (*sizes, *(shape(keys.cache) or ()), *(shape(values.cache) or ()))):
        return "sizes vary"
    if not isinstance(scale, (int, float)) or sizes[2] != shape(keys.rows)[2]:  # type: ignore[index]
        return "other queries than new keys"
    if any(not is_call(user, operator.getitem) or user.args[1] != 0 for user in node.users):
        return "the sums of exponentials are used"
    if not is_served(context.get().info, sizes, shape(keys.cache) or (), shape(values.cache) or (), value(q).dtype):
        return "too many queries, or heads or a device that the kernel does not serve"
    return ""


def _matches(graph: torch.fx.Graph) -> Iterator[Match]:
    for node in list(graph.nodes):
        if not is_call(node, attention):
            continue
        keys, values = (_write(_grouped(x)) for x in node.args[1:3])
        if isinstance(keys, Write) and isinstance(values, Write):
            refused = _refusal(node, keys, values)
            if refused:
                yield Match(PATTERN, node.name, refused)
                continue
            name, missed = node.name, _replace(graph, node, keys, values)
            yield Match(PATTERN, name)
            if missed:
                yield Match(f"{PATTERN} with what is before it", name, missed)
        elif isinstance(keys, str) or isinstance(values, str):
            yield Match(PATTERN, node.name, keys if isinstance(keys, str) else str(values))


def apply(graph: torch.fx.Graph) -> Iterable[Match]:
    """Replace what matches; new nodes stand where the attention was, so the rest is put into order after."""
    matches = list(_matches(graph))
    if any(not match.missed for match in matches):
        stable_topological_sort(graph)
    return matches
