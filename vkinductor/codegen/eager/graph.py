"""One call as an FX graph, and the graph's results as the call's.

Owns what the schema says about results: new tensors come out of the graph, written arguments are handed back as the
very tensors that were passed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.fx.proxy import GraphAppendingTracer

from .formulas import COMPUTE, FORMULAS
from .signature import Constant, Slot

aten = torch.ops.aten


def is_written(returned: Any) -> bool:
    """Whether a return of a schema is an argument that the operator wrote."""
    return returned.alias_info is not None and returned.alias_info.is_write


def is_readable(op: Any) -> bool:
    """Whether results are new tensors, lists of them or written arguments (views and numbers are not compiled)."""
    fresh = ("Tensor", "List[Tensor]")
    return all(is_written(r) or (r.alias_info is None and str(r.type) in fresh) for r in op._schema.returns)


# The operator without its writes ---------------------------------------------------------------------------


def functional(op: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any], tuple[Any, ...]]:
    """An out= or in-place call as one of the overload that returns new results: (overload, args, kwargs, written).

    ``written``: the arguments that take the results, in order. out= kernels have meta functions that refuse symbolic
    sizes. A call without such an overload comes back as it is, with nothing written.
    """
    target = out_of_place(op)
    if target is op:
        return op, args, kwargs, ()
    outs = [a.name for a in op._schema.arguments if a.is_out]
    if not outs:
        return target, args, kwargs, (args[0],)
    rest = {name: value for name, value in kwargs.items() if name not in outs}
    return target, args, rest, tuple(kwargs[name] for name in outs)


@functools.cache
def out_of_place(op: Any) -> Any:
    """The overload without writes of an in-place or out= overload, by schema; ``op`` itself where there is none."""
    schema = op._schema
    if not schema.is_mutable:
        return op
    packet = op.overloadpacket
    namespace, _, name = schema.name.partition("::")
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place:
        packet = getattr(getattr(torch.ops, namespace), name[:-1], packet)
        if written != [schema.arguments[0].name]:
            return op
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        if overload._schema.is_mutable:
            continue
        if [(a.name, str(a.type)) for a in overload._schema.arguments] == wanted:
            return overload
    return op


def formula(op: Any, result: torch.dtype | None) -> Any:
    """The formula that computes ``op`` from tensors alone, if there is one for results of this dtype."""
    return FORMULAS.get(out_of_place(op)) if result in COMPUTE else None


# The graph -------------------------------------------------------------------------------------------------


def build(
    op: Any, slots: tuple[Any, Any], tensors: int, numbers: Sequence[Any], lengths: Sequence[int]
) -> fx.GraphModule:
    """The graph of a call with ``tensors`` tensors, which come first among its inputs.

    ``numbers``: each varying number's value, or None where it is an input. ``lengths``: of the lists it returns.
    """
    graph = fx.Graph()
    inputs, values = _placeholders(graph, tensors, numbers)

    def fill(value: Any) -> Any:
        if isinstance(value, Constant):
            options: dict[str, Any] = {"dtype": value.dtype, "device": torch.device("vulkan", 0)}
            return graph.call_function(aten.scalar_tensor.default, (value.value,), options)
        if not isinstance(value, Slot):
            return value
        return inputs[value.index] if value.kind == "tensor" else values[value.index]

    target, args, kwargs, written = functional(op, *slots)
    result = graph.call_function(target, map_aggregate(args, fill), map_aggregate(kwargs, fill))
    returns = op._schema.returns
    for i, out in enumerate(written):
        value = result if len(written) == 1 else graph.call_function(operator.getitem, (result, i))
        graph.call_function(aten.copy_.default, (fill(out), value))
    kept: list[Any] = []
    lists = iter(lengths)
    for i, returned in enumerate(returns):
        if is_written(returned):
            continue
        value = result if len(returns) == 1 else graph.call_function(operator.getitem, (result, i))
        if str(returned.type) == "List[Tensor]":
            kept += [graph.call_function(operator.getitem, (value, j)) for j in range(next(lists))]
        else:
            kept.append(value)
    graph.output(tuple(kept))
    return fx.GraphModule({}, graph)


def build_formula(
    op: Any, slots: tuple[Any, Any], dtypes: Sequence[torch.dtype], numbers: int, result: torch.dtype
) -> fx.GraphModule:
    """The graph of a call by its formula.

    ``dtypes``: the tensors'. ``numbers``: how many come as tensors without dimensions. ``result``: the result's dtype.
    """
    graph = fx.Graph()
    inputs, values = _placeholders(graph, len(dtypes), [None] * numbers)
    tracer = GraphAppendingTracer(graph)
    compute = COMPUTE[result]

    def fill(value: Any) -> Any:
        if not isinstance(value, Slot):
            return value
        if value.kind == "number":
            return fx.Proxy(values[value.index], tracer)
        proxy = fx.Proxy(inputs[value.index], tracer)
        dtype = dtypes[value.index]
        return proxy if dtype in (compute, torch.bool) else proxy.to(compute)

    target, args, kwargs, written = functional(op, *slots)
    made = FORMULAS[target](*map_aggregate(args, fill), **map_aggregate(kwargs, fill)).to(result)
    if written:
        graph.call_function(aten.copy_.default, (inputs[written[0].index], made.node))
    graph.output(() if written else (made.node,))
    return fx.GraphModule({}, graph)


def _placeholders(graph: fx.Graph, tensors: int, numbers: Sequence[Any]) -> tuple[list[fx.Node], list[Any]]:
    inputs = [graph.placeholder(f"t{i}") for i in range(tensors)]
    return inputs, [graph.placeholder(f"n{i}") if n is None else n for i, n in enumerate(numbers)]


# Results ---------------------------------------------------------------------------------------------------


def results(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any], lengths: Sequence[int]
) -> Any:
    """What the operator returns: ``values`` are the graph's outputs."""
    plan = _plan(op)
    if len(plan) == 1:  # nearly all
        return _one(plan[0], args, kwargs, values, lengths)
    fresh, lists = iter(values), iter(lengths)
    made = []
    for item in plan:
        if item == "list":
            made.append([next(fresh) for _ in range(next(lists))])
        else:
            made.append(next(fresh) if item == "tensor" else _argument(item, args, kwargs))
    return tuple(made) if made else None


def _one(item: Any, args: Any, kwargs: Any, values: Sequence[Any], lengths: Sequence[int]) -> Any:
    if item == "tensor":
        return values[0]
    return list(values) if item == "list" else _argument(item, args, kwargs)


def _argument(place: tuple[int, str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    position, name = place
    return args[position] if position < len(args) else kwargs[name]


@functools.cache
def _plan(op: Any) -> tuple[Any, ...]:
    """For each return "tensor", "list", or the (position, name) of the argument it is."""
    plan: list[Any] = []
    for returned in op._schema.returns:
        if not is_written(returned):
            plan.append("list" if str(returned.type) == "List[Tensor]" else "tensor")
            continue
        alias = returned.alias_info.before_set
        plan += [
            (i, a.name)
            for i, a in enumerate(op._schema.arguments)
            if a.alias_info is not None and a.alias_info.before_set == alias
        ]
    return tuple(plan)
