"""What is kept of an operator that a user has registered, and the rules for its arguments and result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vkinductor.runtime.errors import OperatorError

Rule = Callable[..., Any]


@dataclass(frozen=True)
class Glsl:
    """The GLSL of a kernel. ``style``: "elementwise" or "workgroup". ``groups(*args)``: how many workgroups."""

    glsl: str
    style: str
    preamble: str = ""
    workgroup: int | None = None
    groups: Rule | None = None


@dataclass(frozen=True)
class Rules:
    """What arguments an operator takes and what its result is; arguments are those of the schema."""

    shape: str | Rule | None = None
    dtype: str | torch.dtype | Rule | None = None
    dtypes: Mapping[str, Collection[torch.dtype]] = field(default_factory=dict)
    ranks: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    check: Rule | None = None


@dataclass(frozen=True)
class Entry:
    """One registered operator: ``function`` of other torch operators, or ``kernel``.

    ``identity``: hash of everything that generated code depends on.
    """

    op: Any
    identity: str
    function: Rule | None = None
    kernel: Glsl | None = None
    rules: Rules = Rules()
    backward: Rule | None = None
    setup_context: Rule | None = None
    reference: Rule | None = None

    @property
    def name(self) -> str:
        """The operator's qualified name, with its overload unless that is the default one."""
        return str(self.op.name())

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Argument name -> value, defaults filled in."""
        arguments = self.op._schema.arguments
        bound = dict(zip((a.name for a in arguments), args, strict=False))
        bound.update(kwargs)
        for a in arguments:
            if a.name not in bound:
                bound[a.name] = a.default_value
        return {a.name: bound[a.name] for a in arguments}

    def call(self, rule: Rule, bound: Mapping[str, Any]) -> Any:
        """The result of a rule, which is given as many of the arguments as it takes, by position."""
        return rule(*bound.values())

    def check(self, bound: Mapping[str, Any]) -> None:
        """Raise OperatorError that names the argument and what it may be."""
        rules = self.rules
        for name, allowed in rules.dtypes.items():
            tensor = bound[name]
            if isinstance(tensor, torch.Tensor) and tensor.dtype not in allowed:
                raise OperatorError(
                    f"{self.name}: argument {name!r} is {tensor.dtype}; it may be {', '.join(map(str, allowed))}"
                )
        for name, rank in rules.ranks.items():
            tensor = bound[name]
            low, high = rank if isinstance(rank, tuple) else (rank, rank)
            if isinstance(tensor, torch.Tensor) and not low <= tensor.dim() <= high:
                wanted = str(low) if low == high else f"{low} to {high}"
                raise OperatorError(
                    f"{self.name}: argument {name!r} has {tensor.dim()} dimensions, {[*tensor.shape]}; it may have "
                    f"{wanted}"
                )
        if rules.check is not None:
            try:
                problem = self.call(rules.check, bound)
            except (ValueError, TypeError) as error:
                problem = str(error)
            if isinstance(problem, str):
                raise OperatorError(f"{self.name}: {problem}")

    def result(self, bound: Mapping[str, Any]) -> torch.Tensor:
        """An uninitialized result: contiguous, on the device of the first tensor."""
        tensors = [value for value in bound.values() if isinstance(value, torch.Tensor)]
        try:
            return tensors[0].new_empty(self._sizes(bound, tensors), dtype=self._dtype(bound, tensors))
        except OperatorError:
            raise
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise OperatorError(f"{self.name}: its result cannot be told from its arguments: {error}") from error

    def _sizes(self, bound: Mapping[str, Any], tensors: list[torch.Tensor]) -> Any:
        shape = self.rules.shape
        if isinstance(shape, str):
            return bound[shape].shape
        if shape is not None:
            return self.call(shape, bound)
        return torch.broadcast_shapes(*(t.shape for t in tensors))

    def _dtype(self, bound: Mapping[str, Any], tensors: list[torch.Tensor]) -> torch.dtype:
        dtype = self.rules.dtype
        if isinstance(dtype, torch.dtype):
            return dtype
        if isinstance(dtype, str):
            return bound[dtype].dtype
        if dtype is not None:
            return self.call(dtype, bound)
        found = tensors[0].dtype
        for tensor in tensors[1:]:
            found = torch.promote_types(found, tensor.dtype)
        return found


def takes(rule: Rule | None, count: int) -> bool:
    """Whether a rule can be called with ``count`` arguments by position."""
    if rule is None:
        return True
    try:
        inspect.signature(rule).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # written in C: it has no signature to look at
        return True
    return True
