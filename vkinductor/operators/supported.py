"""The list of operators: where each runs when its tensors are on the device, and why there.

Read from the tables that decide it: kernels registered for the device, Inductor's lowerings and decompositions with
ours in front. A lowering that can leave arguments to torch's own kernel is told from its source.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.device import eager, random
from vkinductor.device.registry import registry


@dataclass(frozen=True)
class Support:
    """Where an operator runs and why.

    ``where``: "gpu" (kernels of the device), "view" (no work at all), "host" (values made on the host and uploaded, or
    read by it), "composed" (torch makes it of other operators before a device is asked), "cpu" (a fallback).
    """

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where:9}{self.why}"


def supported_ops(pattern: str = "*") -> dict[str, Support]:
    """See ``vkinductor.supported_ops``. Imports Inductor."""
    from vkinductor import codegen
    from vkinductor.codegen import decompositions

    codegen.register()
    table = decompositions.table()
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    found: dict[str, Support] = {}
    for name in sorted(names | set(registry.operators)):
        op = _overload(name)
        if op is not None and fnmatch.fnmatchcase(str(op), pattern):
            found[str(op)] = _support(op, table)
    return found


def _overload(name: str) -> Any:
    """The OpOverload of a dispatcher's name; None for what torch does not offer to Python."""
    base, _, overload = name.partition(".")
    namespace, _, operator = base.partition("::")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
    except (AttributeError, RuntimeError):
        return None


def _support(op: Any, table: dict[Any, Any]) -> Support:
    from torch._inductor import lowering

    from vkinductor.codegen import decompositions
    from vkinductor.codegen.eager import graph

    users = registry.operators.get(op.name())
    if users is not None:
        return Support("gpu", "registered by the user, in " + ("GLSL" if users.function is None else "PyTorch"))
    base = graph.out_of_place(op)
    variant = "" if base is op else f" as {base}"
    if _has(op, "PrivateUse1"):
        return _kernel(op)
    lower = lowering.lowerings.get(base)
    if lower is not None and not getattr(lower, "_is_fallback_handler", False):
        whose = "our lowering" if getattr(lower, "vkinductor", False) else "Inductor's lowering"
        partly = "; some arguments are left to torch's kernel, on the CPU" if _may_leave(lower) else ""
        return Support("gpu", f"{whose}{variant}{partly}")
    if base in decompositions.OURS:
        return Support("gpu", f"our decomposition{variant}")
    if base in table:
        return Support("gpu", f"Inductor's decomposition{variant}")
    if _has(op, "CompositeImplicitAutograd"):
        return Support("composed", "torch makes it of other operators")
    if _is_view(op):
        return Support("view", "torch makes it of other views") if _composed(op) else Support("cpu", "no kernel")
    if _composed(op):
        return Support("composed", "torch makes it of other operators, after autograd")
    if op is not base and _has(base, "CompositeImplicitAutograd"):
        return Support("composed", f"torch makes it of other operators{variant}")
    return Support("cpu", "no kernel of the device, and Inductor neither lowers nor decomposes it")


@functools.cache
def _may_leave(lower: Any) -> bool:
    """Whether the source of a lowering names a fallback."""
    try:
        return "fallback" in inspect.getsource(inspect.unwrap(lower))
    except (OSError, TypeError):
        return False


def _kernel(op: Any) -> Support:
    if _is_view(op):
        return Support("view", "sizes, strides and offset only")
    if eager._key(op) in eager.HOST_MADE:
        return Support("host", "made on the host and uploaded")
    if eager._key(op) in random.OVERWRITE:
        return Support("host", "drawn on the host and uploaded: the CPU's numbers for a seed")
    if not any("Tensor" in str(r.type) for r in op._schema.returns):
        return Support("host", "its result is a number, which the host waits for")
    return Support("gpu", "a kernel of the device")


def _is_view(op: Any) -> bool:
    """Whether the schema says that results are views of an argument."""
    returned = [r.alias_info for r in op._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _composed(op: Any) -> bool:
    # Not CompositeExplicitAutogradNonFunctional: that calls the out= overload, which has no kernel either.
    return _has(op, "CompositeExplicitAutograd")


def _has(op: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))
