"""Eager operators through the compiler: one operator is a graph of one node, compiled with symbolic sizes.

So there is one code generator for everything the device runs. A compiled operator is kept by operator, dtypes,
ranks, broadcast pattern and the other arguments; the guards Inductor needed on the sizes decide whether it serves
a call. What Inductor itself would hand back to eager is refused, and the device falls back to the CPU.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

# Guarded versions of one key; past this the operator is compiled for exact sizes no more and falls back.
MAX_VERSIONS = 16


@dataclass(frozen=True)
class CompiledOp:
    """One compiled version: ``guards`` over the symbolic sizes ``symbols``, and the program."""

    shape_env: Any
    guards: str | None
    where: tuple[tuple[int, str, int], ...]
    run: Callable[..., Any]

    def serves(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the guards hold for these tensors."""
        if self.guards is None:
            return True
        values = [_size(tensors[i], kind, dim) for i, kind, dim in self.where]
        return bool(self.shape_env.evaluate_guards_expression(self.guards, values))


@dataclass
class Versions:
    """All versions of one key, newest use first."""

    entries: list[CompiledOp] = field(default_factory=list)


class EagerCompiler:
    """Compiles and keeps single operators. Thread-safe; one instance is plugged into the device."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._versions: dict[Any, Versions] = {}
        self._refused: set[Any] = set()

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``op``; NotImplemented when it cannot be compiled (see device.hooks.set_compile_op)."""
        if op in self._refused:
            return NotImplemented
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors, places = _distinct(leaves)
        if op._schema.is_mutable and _written_overlap(op._schema, args, kwargs, tensors):
            return NotImplemented
        try:
            key = (op, spec, places, tuple(map(_leaf_key, leaves)))
            versions = self._versions.setdefault(key, Versions())
        except TypeError:
            return NotImplemented
        for version in versions.entries:
            if version.serves(tensors):
                return _results(op, args, kwargs, version.run(*tensors))
        with self._lock:
            if len(versions.entries) >= MAX_VERSIONS or not _worth_compiling(op):
                self._refused.add(op)
                return NotImplemented
            version = _compile(op, leaves, spec, tensors, places)
            if version is None:
                self._refused.add(op)
                return NotImplemented
            versions.entries.insert(0, version)
        return _results(op, args, kwargs, version.run(*tensors))


def _distinct(leaves: Sequence[Any]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """The different tensors among ``leaves``, and for each leaf its number among them (-1: no tensor).

    An in-place operator arrives with one tensor as input and as out=: it is one input of the graph.
    """
    numbers: dict[int, int] = {}
    tensors: list[torch.Tensor] = []
    places = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            places.append(-1)
            continue
        number = numbers.setdefault(id(leaf), len(tensors))
        if number == len(tensors):
            tensors.append(leaf)
        places.append(number)
    return tensors, tuple(places)


def _written_overlap(schema: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a written argument shares its storage with another: what is written may be still to be read."""
    storages = [t.untyped_storage()._cdata for t in tensors]
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for written in pytree.tree_leaves(value):
            if isinstance(written, torch.Tensor) and storages.count(written.untyped_storage()._cdata) > 1:
                return True
    return False


def _leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        pattern = tuple(min(s, 2) for s in leaf.shape)
        order = tuple(0 if s == 0 else 1 if s == 1 else 2 for s in leaf.stride())
        return ("tensor", leaf.dtype, leaf.device.type, pattern, order, leaf.is_contiguous())
    hash(leaf)
    # 1, 1.0 and True are equal and hash alike.
    return (type(leaf), leaf)


def _size(tensor: torch.Tensor, kind: str, dim: int) -> int:
    return tensor.size(dim) if kind == "size" else tensor.stride(dim)


def _worth_compiling(op: Any) -> bool:
    """Whether Inductor lowers or decomposes ``op`` itself."""
    from torch._inductor import lowering
    from torch._inductor.decomposition import select_decomp_table

    base = _functional(op)
    if base in lowering.fallbacks:
        return False
    return base in lowering.lowerings or base in select_decomp_table()


def _functional(op: Any) -> Any:
    """The out-of-place overload of an in-place or out= overload, by schema; ``op`` itself otherwise."""
    if not op._schema.is_mutable:
        return op
    packet = op.overloadpacket
    name = op._schema.name.split("::")[1]
    if name.endswith("_") and not name.endswith("__"):
        packet = getattr(torch.ops.aten, name[:-1], packet)
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        if overload._schema.is_mutable:
            continue
        if [(a.name, str(a.type)) for a in overload._schema.arguments] == wanted:
            return overload
    return op


def _graph(op: Any, leaves: Sequence[Any], spec: Any, places: Sequence[int]) -> fx.GraphModule:
    graph = fx.Graph()
    inputs = [graph.placeholder(f"arg{i}") for i in range(max(places) + 1)]
    nodes = [x if place < 0 else inputs[place] for x, place in zip(leaves, places, strict=True)]
    args, kwargs = pytree.tree_unflatten(nodes, spec)
    result = graph.call_function(op, args, kwargs)
    returns = op._schema.returns
    kept: list[Any] = []
    for i, returned in enumerate(returns):
        written = returned.alias_info is not None and returned.alias_info.is_write
        if not written:
            kept.append(result if len(returns) == 1 else graph.call_function(operator.getitem, (result, i)))
    if len(returns) == 1 and kept and str(returns[0].type).startswith("List"):
        raise NotImplementedError("operators that return lists are not compiled")
    graph.output(tuple(kept))
    return fx.GraphModule({}, graph)


def _compile(
    op: Any, leaves: Sequence[Any], spec: Any, tensors: Sequence[torch.Tensor], places: Sequence[int]
) -> CompiledOp | None:
    from torch._dynamo.source import ConstantSource
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    try:
        module = _graph(op, leaves, spec, places)
    except NotImplementedError:
        return None
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    fakes = []
    storages: set[int] = set()
    for i, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()._cdata
        if storage in storages:
            # Two inputs that only read one storage: to the graph they are strangers.
            tensor = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        storages.add(storage)
        context: Any = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim(),
            constraint_sizes=[None] * tensor.dim(),
        )
        fakes.append(mode.from_tensor(tensor.detach(), symbolic_context=context, source=ConstantSource(f"arg{i}")))
    from .settings import FIXED

    with torch.no_grad(), _clean_dispatch():
        try:
            compiled = compile_fx(module, fakes, config_patches=dict(FIXED))
        except Exception as error:  # the fallback is the answer to whatever Inductor could not do
            _log_refusal(op, error)
            return None
    where, symbols = _symbols(fakes)
    guards = shape_env.produce_guards_expression(placeholders=symbols, ignore_static=False) if symbols else None
    return CompiledOp(shape_env, guards, tuple(where), _unguarded(compiled))


def _symbols(fakes: Sequence[torch.Tensor]) -> tuple[list[tuple[int, str, int]], list[Any]]:
    where, symbols = [], []
    for i, fake in enumerate(fakes):
        for kind, values in (("size", fake.size()), ("stride", fake.stride())):
            for dim, value in enumerate(values):
                if isinstance(value, torch.SymInt):
                    where.append((i, kind, dim))
                    symbols.append(value)
    return where, symbols


def _unguarded(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def run(*tensors: torch.Tensor) -> Any:
        with torch.no_grad(), _clean_dispatch():
            return compiled(*tensors)

    return run


def _clean_dispatch() -> Any:
    """Dispatch as from user code: an eager kernel runs with the autograd keys excluded."""
    return torch._C._PreserveDispatchKeyGuard()


def _log_refusal(op: Any, error: Exception) -> None:
    import logging

    logging.getLogger(__name__).debug("%s is not compiled: %s", op, error)


def _results(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: Any) -> Any:
    """The operator's return values: new tensors, and for written arguments the very tensors that were passed."""
    schema = op._schema
    if not schema.returns:
        return None
    fresh = iter(values)
    results = []
    for returned in schema.returns:
        info = returned.alias_info
        if info is not None and info.is_write:
            results.append(_argument(schema, args, kwargs, info))
        else:
            results.append(next(fresh))
    return results[0] if len(results) == 1 else tuple(results)


def _argument(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any], info: Any) -> Any:
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == info.before_set:
            return args[position] if position < len(args) else kwargs[argument.name]
    raise AssertionError(f"{schema.name} returns an alias of no argument")
