"""What a generated kernel is launched with, so that it runs without its graph: operands, numbers, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor.virtualized import V

from ..compat import size_hint
from ..source import KernelText
from .family import Operand


class NotLaunchableError(Exception):
    """The kernel cannot be launched alone with made-up operands; the message says why."""


@dataclass(frozen=True)
class Arguments:
    """``fields``: for each field of the kernel the place of its memory, or its number. ``memory``: what lies there, as
    one row of elements, those that are read first, ``operands`` of them. ``written``: places that hold results.
    ``items``: elements of x that are launched, or workgroups."""

    fields: tuple[tuple[int | None, float], ...]
    memory: tuple[Operand, ...]
    operands: int
    written: tuple[int, ...]
    items: int

    @property
    def nbytes(self) -> int:
        """Of all memory."""
        return sum(o.size[0] * o.dtype.itemsize for o in self.memory)

    @property
    def results(self) -> int:
        """Bytes of what is written alone."""
        return sum(o.size[0] * o.dtype.itemsize for o in self.memory[self.operands :])


def arguments(kernel: Any, text: KernelText) -> Arguments:
    """Those of a finished ``kernel``, with likely sizes. Raises NotLaunchableError."""
    definitions, call_args, _, _ = kernel.args.python_argdefs()
    below = _below(kernel)
    read: dict[str, Operand] = {}
    written: dict[str, Operand] = {}
    numbers: list[tuple[str | None, float]] = []
    for definition, call_arg in zip(definitions, call_args, strict=True):
        inner = definition.name
        if inner in kernel.scalar_arguments:
            numbers.append((None, 1.0 if kernel.scalar_arguments[inner].is_floating_point else 1))
        elif isinstance(call_arg, str):
            operand = _memory(call_arg, below)
            if inner not in text.writes or inner.startswith("in_out"):
                read[call_arg] = operand
            if inner in text.writes:
                written[call_arg] = operand
            numbers.append((call_arg, 0))
        elif inner in kernel.real_arguments:
            numbers.append((None, _real(call_arg)))
        else:
            numbers.append((None, size_hint(call_arg)))
    numbers += [(None, size_hint(tree.numel)) for tree in kernel.passed_numels()]
    if len(numbers) != len(text.layout.fields):
        raise NotLaunchableError("it has arguments of another kind")
    places = {name: i for i, name in enumerate([*read, *(name for name in written if name not in read)])}
    fields = tuple((None if name is None else places[name], value) for name, value in numbers)
    memory = tuple({**read, **written}[name] for name in places)
    (x,) = [size_hint(tree.numel) for tree in kernel.range_trees if tree.prefix == "x"] or [1]
    return Arguments(fields, memory, len(read), tuple(places[name] for name in written), x)


def _below(kernel: Any) -> int:
    """What integers stay below, so that those that are indices are inside, whatever they are indices of; 0: any do."""
    if not kernel.loaded_indices:
        return 0
    checked = len(kernel.checked_below) >= kernel.loaded_indices
    return min((size_hint(size) for size in kernel.checked_below), default=1) if checked else 1


def _memory(name: str, below: int) -> Operand:
    buffer = V.graph.try_get_buffer(name)
    if buffer is None or not buffer.has_tensor_output():
        raise NotLaunchableError(f"{name} is no tensor")
    count = size_hint(V.graph.sizevars.simplify(buffer.get_layout().storage_size()))
    if count < 1:
        raise NotLaunchableError(f"{name} is empty")
    dtype = buffer.get_dtype()
    most = 2 if dtype == torch.bool else 0 if dtype.is_floating_point else torch.iinfo(dtype).max
    return Operand((count,), (1,), dtype, min(below, most))


def _real(expr: Any) -> float:
    symbols = {symbol: size_hint(symbol) for symbol in sympy.sympify(expr).free_symbols}
    return float(sympy.sympify(expr).subs(symbols))


def program(text: KernelText, of: Arguments, items: int) -> Callable[[list[Any]], Sequence[torch.Tensor]]:
    """What launches the kernel on the tensors of its operands, and returns its results."""
    from vkinductor.device import storage

    from ..launch import Kernel

    kernel = Kernel(
        "candidate",
        fields=text.layout.fields,
        writes=text.writes,
        nbytes=text.nbytes,
        per_group=text.per_group,
        glsl=text.glsl,
        subgroup_size=text.subgroup_size,
    )

    def run(operands: list[Any]) -> Sequence[torch.Tensor]:
        made = [storage.empty(o.size, o.stride, o.dtype) for o in of.memory[of.operands :]]
        memory = [*operands, *made]
        kernel.run(*(value if place is None else memory[place] for place, value in of.fields), items)
        return [memory[place] for place in of.written]

    return run
