"""The CPU fallback: any operator, run by torch's CPU kernel on copies in host memory.

The operator's schema says what is written: mutated and out= arguments (lists of tensors too) are written
back, and results that alias an argument do so on the device as well. Every call is counted, and each operator
is warned about once.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.device import copies, factory, metadata, policy, random, strides
from vkinductor.device.registry import DEVICE_NAME, registry
from vkinductor.runtime import stats
from vkinductor.runtime.errors import FallbackError, UnsupportedError

# Operators (by the beginning of their names) whose CPU kernels lay results out otherwise than those of other devices.
_STRIDED_BY_DEVICE = ("aten::_fft_r2c", "aten::_fft_c2c", "aten::_fft_c2r")


class VulkanFallbackWarning(UserWarning):
    """An operator ran on the CPU: its tensors were copied to host memory and back."""


@dataclass(frozen=True)
class _Plan:
    """What the schema of an operator says. names are those of its arguments, in order."""

    names: tuple[str, ...]
    written: frozenset[str]
    out: frozenset[str]  # written, never read, and sized by the operator
    tensors: frozenset[str]  # one tensor each
    seeded: bool


@functools.cache
def _plan(op: Any) -> _Plan:
    arguments = op._schema.arguments
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return _Plan(
        tuple(a.name for a in arguments),
        frozenset(a.name for a in written),
        frozenset(a.name for a in written if a.kwarg_only and op.namespace == "aten"),
        frozenset(a.name for a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]")),
        torch.Tag.nondeterministic_seeded in op.tags,
    )


class _Host:
    """The host copies of one call: each device tensor has one, however often it is passed."""

    def __init__(self) -> None:
        self.pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id of the device tensor -> (device, host)

    def value(self, value: Any, read: bool = True) -> Any:
        """`value` with every vulkan tensor replaced by its host copy, and the device by the CPU."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, read) if value.device.type == DEVICE_NAME else value
        if isinstance(value, (list, tuple)):
            return [self.value(element, read) for element in value]
        if isinstance(value, torch.device) and value.type == DEVICE_NAME:
            return torch.device("cpu")
        return value

    def _tensor(self, tensor: torch.Tensor, read: bool) -> torch.Tensor:
        known = self.pairs.get(id(tensor))
        if known is not None:
            return known[1]
        # torch's operators size an empty out= tensor themselves, and warn when they find another size than
        # they want, as some do on the way to the right one.
        host = copies.to_host(tensor) if read else torch.empty(0, dtype=tensor.dtype)
        self.pairs[id(tensor)] = (tensor, host)
        return host

    def device(self, result: Any) -> Any:
        """The result of the CPU kernel, on the device: an argument, a view of one, or a new tensor."""
        if isinstance(result, torch.Tensor):
            for tensor, host in self.pairs.values():
                if result is host:
                    return tensor
            return self._view(result) if result.layout is torch.strided else _refuse(result)
        if isinstance(result, (list, tuple)):
            return (
                type(result)(map(self.device, result)) if type(result) in (list, tuple) else [*map(self.device, result)]
            )
        return result

    def _view(self, result: torch.Tensor) -> torch.Tensor:
        memory = result.untyped_storage().data_ptr()
        for tensor, host in self.pairs.values():
            if memory and host.untyped_storage().data_ptr() == memory:
                same = host.dtype == result.dtype and strides.same_order(host.size(), host.stride(), tensor.stride())
                if same and not (host.is_conj() or host.is_neg() or result.is_conj() or result.is_neg()):
                    offset = tensor.storage_offset() + result.storage_offset() - host.storage_offset()
                    return metadata.as_strided(tensor, result.size(), result.stride(), int(offset))
        return copies.to_device(result)


def _refuse(result: torch.Tensor) -> torch.Tensor:
    raise UnsupportedError(
        f"the result has layout {result.layout}, which vulkan tensors cannot have: move the inputs to the CPU first"
    )


def run(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    counted: bool = True,
    why: Callable[[], str] | None = None,
) -> Any:
    """Run `op` on the CPU and bring what it returns and writes to the device.

    counted: an operator that only makes new values on the host (`arange`) is not a fallback. why: says why the device
    does not run it.

    Raises:
        FallbackError: the policy forbids it.
        UnsupportedError: the CPU has no kernel for it either, or the result is sparse.
        What the operator itself raises.
    """
    if counted:
        _count(op, why)
    plan = _plan(op)
    host = _Host()
    positional = [host.value(value) for value in args]
    named = {
        name: host.value(value, name not in plan.out)
        for name, value in sorted(kwargs.items(), key=lambda kv: kv[0] in plan.out)
    }
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        try:
            result = _call(op, plan, positional, named)
        except NotImplementedError as error:
            raise UnsupportedError(
                f"{op} runs neither on vulkan nor, as a fallback, on the CPU: {str(error).splitlines()[0]}"
            ) from error
        if op.name().startswith(_STRIDED_BY_DEVICE):
            result = _strided(result, op, args, kwargs)
        for name, value in bound(op, args, kwargs):
            if name in plan.written:
                for tensor in tensors(value):
                    if id(tensor) in host.pairs:
                        _write_back(tensor, host.pairs[id(tensor)][1])
        return host.device(result)


def _strided(result: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A result with the strides that torch says it has on this device: compiled programs count on them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != DEVICE_NAME:
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)

    with FakeTensorMode():
        expected = op(*map(fake, args), **{name: fake(value) for name, value in kwargs.items()})
    if expected.stride() == result.stride():
        return result
    return torch.empty_strided(result.size(), expected.stride(), dtype=result.dtype).copy_(result)


def _call(op: Any, plan: _Plan, positional: list[Any], named: dict[str, Any]) -> Any:
    if plan.seeded:
        return random.run_seeded(op, tuple(positional), named)
    try:
        return op(*positional, **named)
    except RuntimeError as error:
        # A number in the place of a tensor arrives as a Python number, which most operators do not take from Python.
        if "Unable to cast" not in str(error):
            raise
    double = any(t.dtype is torch.float64 for value in (*positional, *named.values()) for t in tensors(value))
    floating = torch.float64 if double else torch.float32

    def tensor(name: str, value: Any) -> Any:
        if name not in plan.tensors or not isinstance(value, (bool, int, float)):
            return value
        return torch.tensor(value, dtype={bool: torch.bool, int: torch.int64}.get(type(value), floating))

    return op(
        *(tensor(name, value) for name, value in zip(plan.names, positional, strict=False)),
        **{name: tensor(name, value) for name, value in named.items()},
    )


def bound(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(argument name, value) of a call of `op`."""
    yield from zip(_plan(op).names, args, strict=False)
    yield from kwargs.items()


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument: itself, or those in a list."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from tensors(element)


def _write_back(tensor: torch.Tensor, host: torch.Tensor) -> None:
    if tensor.size() != host.size():
        if tensor.numel():
            warnings.warn(
                f"an output of shape {[*tensor.size()]} was resized to {[*host.size()]}: pass one of that shape, or an "
                "empty one",
                stacklevel=2,
            )
        factory.resize_(tensor, host.size())
    copies.copy_(tensor, host)


def _count(op: Any, why: Callable[[], str] | None) -> None:
    name = str(op)
    site = policy.current()
    why = why or (lambda: "it has no vulkan kernel")
    if site.policy == "error":
        raise FallbackError.of(name, why(), site.where)
    fallbacks = stats.counters.fallbacks
    fallbacks[name] = fallbacks.get(name, 0) + 1
    if site.policy == "warn" and name not in registry.warned:
        registry.warned.add(name)
        where = f"\n  {site.where}" if site.where else ""
        warnings.warn(
            f"{name} ran on the CPU: {why()}. Its tensors are copied to host memory and back at each call; this is "
            f"said once for each operator{where}",
            VulkanFallbackWarning,
            stacklevel=2,
        )
