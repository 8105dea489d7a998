"""What higher layers plug into the device: a compiler for single operators, and work to do when the device is
opened.

Owns the two hooks' contracts. `registry` holds what was plugged in; `eager` and the registry's `open` call
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkinductor.device.registry import registry

CompileOp = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def set_compile_op(compile_op: CompileOp | None) -> CompileOp | None:
    """Install the compiler of single operators; None removes it. Returns the one that was there.

    compile_op(op, args, kwargs): op is a `torch._ops.OpOverload`. At least one tensor is on the device; 0-dim
    CPU tensors and the CPU tensors that `eager.CPU_ARGUMENTS` allows may be among the others. It returns what
    the operator returns (for an in-place or out= overload: the very tensors it was given), or NotImplemented,
    which sends the operator to the CPU fallback. Operators called while it runs go straight to the fallback:
    it is never entered twice by one thread.
    """
    previous, registry.compile_op = registry.compile_op, compile_op
    return previous


def add_on_init(callback: Callable[[], None]) -> None:
    """Call `callback` once when the device is opened; at once when it already is. A callback is added only
    once."""
    with registry.lock:
        if callback in registry.on_init:
            return
        registry.on_init.append(callback)
        opened = registry.current() is not None
    if opened:
        callback()
