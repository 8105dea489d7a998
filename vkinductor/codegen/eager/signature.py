"""Reading the call of an operator: its tensors, the numbers that may vary, and the pattern that everything else makes.

Two calls of one pattern differ in sizes and numbers alone: one program can serve both.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.device.strides import extent

_PLAIN = (torch.Tensor, torch.nn.Parameter)

# Argument types whose values a program takes as inputs when they vary. Sizes are told by the schema's text: the
# parsed schema calls them int like a dimension, which selects code. A tensor argument may be given a number.
_NUMBER = re.compile(r"Tensor\??|Scalar\??|Scalar\[\]|float\??|float\[\d*\]\??|SymInt\??|SymInt\[\d*\]\??")
_ARGUMENT = re.compile(r"([\w?]+(?:\[\d*\]\??)?)(?:\([\w!]+\)[?]?)? (\w+)(?:=[^,)]*)?(?=[,)])")

# CPU tensors without dimensions in these dtypes are what torch makes of Python numbers.
_WRAPPED = (torch.float64, torch.int64, torch.bool, torch.complex128)


class Unreadable(Exception):
    """A call that no program can stand for."""


@dataclass(frozen=True)
class Signature:
    """What the schema of an operator says.

    ``varying``: for each argument, by position and by name, whether numbers in it may vary; ``sizes``: names of those
    that are sizes; ``tensors``: of those that are one tensor. ``written``: names of the arguments the operator writes;
    ``out``: of those it does not read.
    """

    names: tuple[str, ...]
    varying: tuple[bool, ...]
    varying_names: frozenset[str]
    tensors: frozenset[str]
    sizes: frozenset[str]
    written: frozenset[str]
    out: frozenset[str]


@functools.cache
def signature(op: Any) -> Signature:
    """The signature of an OpOverload."""
    arguments = op._schema.arguments
    text = str(op._schema)
    types = {name: kind for kind, name in _ARGUMENT.findall(text[text.index("(") : text.rindex("->")])}
    names = tuple(a.name for a in arguments)
    sizes = frozenset(name for name in names if types.get(name, "").startswith("SymInt"))
    varying = tuple(bool(_NUMBER.fullmatch(types.get(name, ""))) for name in names)
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return Signature(
        names,
        varying,
        frozenset(n for n, v in zip(names, varying, strict=True) if v),
        frozenset(name for name in names if types.get(name, "") in ("Tensor", "Tensor?")),
        sizes,
        frozenset(a.name for a in written),
        frozenset(a.name for a in written if a.kwarg_only),
    )


@dataclass(frozen=True)
class Slot:
    """Stands in a call's arguments for tensor or number ``index``."""

    kind: str  # "tensor" or "number"
    index: int


class Kind:
    """What a pattern says of a tensor. One object for each, so that comparing and hashing take no time."""

    __slots__ = ("what",)

    def __init__(self, what: tuple[Any, ...]) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"Kind{self.what}"


_kinds = functools.cache(Kind)


@functools.lru_cache(maxsize=4096)
def _kind(dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[Kind, int]:
    """(kind, bytes from the first element to the end of the last). Sizes and strides of 0 and 1 are special."""
    expected, contiguous = 1, True
    for n, step in zip(reversed(size), reversed(stride), strict=True):
        contiguous = contiguous and (n == 1 or step == expected)
        expected *= n
    shape = tuple(min(n, 2) for n in size)
    order = tuple(min(step, 2) for step in stride)
    what = (dtype, contiguous or expected == 0, shape, order)
    return _kinds(what), extent(size, stride) * dtype.itemsize


class Call:
    """One call, read.

    ``pattern``: hashable; equal for calls that one program may serve. ``tensors``: the different tensors, in order.
    ``ranges``: the addresses (first, end) of each. ``numbers``: the ints and floats that may vary, in order.
    """

    __slots__ = ("_identities", "numbers", "pattern", "ranges", "tensors")

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rules = signature(op)
        self.tensors: list[torch.Tensor] = []
        self.ranges: list[tuple[int, int]] = []
        self.numbers: list[int | float] = []
        self._identities: dict[Any, int] = {}  # what a tensor sees -> its number
        pattern: list[Any] = [op]
        read = self._read
        for value, varying in zip(args, rules.varying, strict=False):
            pattern.append(read(value, varying))
        for name, value in kwargs.items():
            pattern.append(name)
            pattern.append(read(value, name in rules.varying_names))
        if torch.are_deterministic_algorithms_enabled():  # what is compiled depends on it
            pattern.append("deterministic")
        self.pattern = tuple(pattern)

    def _read(self, value: Any, varying: bool) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return self._tensor(value)
        if value is None or kind is bool:
            return value
        if kind is float or kind is int:
            return self._number(value) if varying else (kind, value)
        if kind is list or kind is tuple:
            read = self._read
            return (kind, *[read(v, varying) for v in value])
        if isinstance(value, (torch.Tensor, torch.Generator)):
            # A subclass, a fake, a random generator: not for a compiled program.
            raise Unreadable
        try:
            hash(value)
        except TypeError:
            raise Unreadable from None
        return (kind, value)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.is_cpu:
            if tensor.dim():
                tensor = tensor.to("vulkan")  # indices may come from the CPU
            elif tensor.dtype in _WRAPPED:
                return self._read(tensor.item(), True)
        size, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype
        start = tensor.data_ptr()
        kind, nbytes = _kind(dtype, size, stride)
        # An in-place operator arrives with one tensor as input and as out=: it is one input of the program.
        identity = (start, size, stride, dtype) if nbytes else id(tensor)
        index = self._identities.setdefault(identity, len(self.tensors))
        if index < len(self.tensors):
            return index
        self.tensors.append(tensor)
        self.ranges.append((start, start + nbytes))
        return (index, kind)

    def _number(self, value: int | float) -> Any:
        """Numbers that are special to torch or to floating point stay part of the pattern."""
        if value == 0 or value == 1 or value == -1:
            return (type(value), value, math.copysign(1.0, value))
        if type(value) is float and not math.isfinite(value):
            return str(value)
        self.numbers.append(value)
        return (type(value), value > 0) if type(value) is int else float


class _Slots(Call):
    """Reads a call into its own arguments, with a ``Slot`` in the place of each tensor and varying number."""

    __slots__ = ()

    def _read(self, value: Any, varying: bool) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return self._tensor(value)
        if kind is list or kind is tuple:
            return kind(self._read(v, varying) for v in value)
        if varying and (kind is float or kind is int):
            return self._number(value)
        return value

    def _tensor(self, tensor: torch.Tensor) -> Any:
        read = super()._tensor(tensor)
        if tensor.is_cpu and not tensor.dim() and tensor.dtype in _WRAPPED:
            return read  # a number
        return Slot("tensor", read if isinstance(read, int) else read[0])

    def _number(self, value: int | float) -> Any:
        count = len(self.numbers)
        super()._number(value)
        return Slot("number", count) if len(self.numbers) > count else value


def slotted(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``args`` and ``kwargs`` with slots numbered as ``Call`` numbers tensors and numbers."""
    parts = _Slots(op, args, kwargs).pattern[1:]
    named = parts[len(args) : len(args) + 2 * len(kwargs)]
    return parts[: len(args)], dict(zip(named[::2], named[1::2], strict=True))


def is_size(op: Any, slots: tuple[Any, Any], count: int) -> list[bool]:
    """For each of the ``count`` varying numbers of a call whether it is a size: the schema's SymInt."""
    rules = signature(op)
    result = [False] * count

    def mark(value: Any) -> None:
        if isinstance(value, Slot):
            if value.kind == "number":
                result[value.index] = True
        elif isinstance(value, (list, tuple)):
            for element in value:
                mark(element)

    for name, value in [*zip(rules.names, slots[0], strict=False), *slots[1].items()]:
        if name in rules.sizes:
            mark(value)
    return result


@dataclass(frozen=True)
class Constant:
    """Stands for a tensor without dimensions that is made in the graph."""

    value: Any
    dtype: torch.dtype


def with_constants(op: Any, slots: tuple[Any, Any], numbers: list[Any], double: bool) -> tuple[Any, Any]:
    """``slots`` with a ``Constant`` for each number given for a tensor (not every overload accepts these from Python).

    ``double``: a tensor of the call is float64.
    """
    rules = signature(op)

    def constant(name: str, value: Any) -> Any:
        if name not in rules.tensors:
            return value
        if isinstance(value, Slot) and value.kind == "number":
            value = numbers[value.index]
        if not isinstance(value, (bool, int, float)):
            return value
        floating = torch.float64 if double else torch.float32
        return Constant(value, {bool: torch.bool, int: torch.int64}.get(type(value), floating))

    args = tuple(constant(n, v) for n, v in zip(rules.names, slots[0], strict=False))
    return args, {n: constant(n, v) for n, v in slots[1].items()}
