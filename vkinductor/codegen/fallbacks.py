"""Operators that Inductor leaves to torch's own kernels: which will run on the CPU, why, and where the user wrote them.

Owns the fallback policy at compile time (``options={"fallback": ...}``). Whatever cannot be told before the call is
left to `device.policy`: the program names policy and source line around each such operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from vkinductor.runtime.errors import FallbackError

from .types import TYPES

# The last frame of a stack trace that FX keeps: file, line, function, and the line's text where it is known.
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*([^\n]+))?')

# A kernel under one of these serves vulkan tensors before the device's fallback is asked.
_SERVING = (
    "PrivateUse1",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
)


def position(nodes: Iterable[Any]) -> str:
    """The user's source line of the first FX node that has one: "file:line in function: text", or ""."""
    for node in nodes:
        frames = _FRAME.findall((getattr(node, "meta", None) or {}).get("stack_trace") or "")
        if frames:
            file, line, function, text = frames[-1]
            return f"{file}:{line} in {function}" + (f": {text.strip()}" if text else "")
    return ""


def node_position(node: Any) -> str:
    """The user's source line of an Inductor node."""
    origin = node.get_origin_node() if hasattr(node, "get_origin_node") else None
    return position([*([] if origin is None else [origin]), *(getattr(node, "origins", None) or ())])


def is_served(op: Any) -> bool:
    """Whether something serves ``op`` for vulkan tensors before the device's own fallback is asked: a kernel of the
    device, or a composition of other operators (which may fall back themselves)."""
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(op.name(), key) for key in _SERVING)


def is_lowered(op: Any) -> bool:
    """Whether Inductor, or a table of ours, lowers or decomposes ``op`` itself."""
    from torch._inductor import lowering

    from . import decompositions
    from .eager import graph

    base = graph.out_of_place(op)
    # The second: torch decomposes it in Python while it is traced.
    if base in decompositions.table() or torch._C.DispatchKey.Autograd in base.py_kernels:
        return True
    lower = lowering.lowerings.get(base)
    return lower is not None and not getattr(lower, "_is_fallback_handler", False)


def reason(op: Any, dtypes: Iterable[torch.dtype] = ()) -> str:
    """Why ``op`` on tensors of these dtypes has no kernel on the device."""
    foreign = sorted({str(d) for d in dtypes if d not in TYPES})
    if foreign:
        return f"there are no kernels for {', '.join(foreign)}"
    if not is_lowered(op):
        return "it has no kernel on the device, and Inductor neither lowers nor decomposes it"
    return "its lowering leaves arguments like these to a kernel of torch's own"


def certain(node: Any) -> str | None:
    """Why an Inductor node runs on the CPU when it is reached; None when it does not, or only the call can tell."""
    from torch._inductor import ir

    op = getattr(node, "op_overload", None)
    if not isinstance(node, ir.FallbackKernel) or not isinstance(op, torch._ops.OpOverload) or is_served(op):
        return None
    dtypes = [d for d in map(_dtype, _tensors(node)) if d is not None]
    return reason(op, dtypes) if not is_lowered(op) or any(d not in TYPES for d in dtypes) else None


def is_on_device(node: Any) -> bool:
    """Whether an extern node has to do with tensors of the device."""
    return any(device is not None and device.type == "vulkan" for device in map(_device, [node, *_tensors(node)]))


def forbid(node: Any) -> None:
    """Raise FallbackError for an Inductor node that is certain to run on the CPU."""
    why = certain(node)
    if why is not None:
        raise FallbackError.of(str(node.op_overload), why, node_position(node))


def _tensors(node: Any) -> list[Any]:
    inputs = getattr(node, "inputs", None) or ()
    return [value for part in inputs for value in (part if isinstance(part, (list, tuple)) else (part,))]


def _device(node: Any) -> Any:
    try:
        return node.get_device()
    except (AttributeError, NotImplementedError):
        return None


def _dtype(node: Any) -> Any:
    try:
        return node.get_dtype()
    except (AttributeError, NotImplementedError):
        return None
