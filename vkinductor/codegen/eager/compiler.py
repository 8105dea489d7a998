"""Which program serves a call of an eager operator; compiles a new one when none does.

A program is kept by operator, dtypes, ranks, broadcast pattern and the other arguments (``signature``); its guards
decide about sizes. Numbers are compiled in at first and become inputs when they turn out to vary. What Inductor itself
would hand back to eager kernels is refused, and the device falls back to the CPU.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from vkinductor.device import fallback
from vkinductor.device.storage import empty

from .. import decompositions
from . import graph
from .program import Program, Refused, compile_call, is_compiling
from .signature import Call, Slot, Unreadable, signature, slotted

log = logging.getLogger(__name__)

# Programs of one pattern; past this the pattern goes to the CPU.
MAX_PROGRAMS = 16
# Seconds to wait for Dynamo to finish a compilation on another thread before this call goes to the CPU.
LOCK_TIMEOUT = 10.0


@dataclass
class Pattern:
    """The programs for calls that differ in sizes and numbers alone.

    ``written``: which of the call's tensors the operator writes.
    """

    written: tuple[int, ...]
    by_numbers: dict[tuple[Any, ...], list[Program]] = field(default_factory=dict)
    varying: list[Program] = field(default_factory=list)
    numbers_vary: bool = True  # until an attempt to compile them as inputs fails
    refused: str | None = None

    def find(self, tensors: list[torch.Tensor], numbers: list[Any]) -> Program | None:
        """A program that serves these."""
        for program in self.by_numbers.get(tuple(numbers), ()):
            if program.serves(tensors, numbers):
                return program
        for program in self.varying:
            if program.serves(tensors, numbers):
                return program
        return None

    def count(self) -> int:
        """Programs there are."""
        return len(self.varying) + sum(map(len, self.by_numbers.values()))


class EagerCompiler:
    """Compiles and keeps single operators. Thread-safe; one instance is plugged into the device.

    ``compiled``: how many programs it has compiled.
    """

    def __init__(self) -> None:
        self.compiled = 0
        self._lock = threading.RLock()
        self._patterns: dict[Any, Pattern] = {}
        self._never: set[Any] = set()

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``op``; NotImplemented when it cannot be compiled (see device.hooks.set_compile_op)."""
        if is_compiling():
            # Inductor folds constants by running operators: part of compiling, once, and no fallback of the program.
            return fallback.run(op, args, kwargs, counted=False)
        if op in self._never:
            return NotImplemented
        outs = signature(op).out
        if outs and any(_is_unsized(kwargs.get(name)) for name in outs):
            return self._resized(op, args, kwargs)
        try:
            call = Call(op, args, kwargs)
        except Unreadable:
            return NotImplemented
        pattern = self._patterns.get(call.pattern)
        if pattern is None:
            pattern = self._new_pattern(op, call, args, kwargs)
        if pattern is None or pattern.refused is not None:
            return NotImplemented
        tensors = call.tensors
        if pattern.written and len(tensors) > 1:
            tensors = _apart(tensors, call.ranges, pattern.written)
        program = pattern.find(tensors, call.numbers)
        if program is None:
            program = self._compile(op, args, kwargs, pattern, tensors, call.numbers)
            if program is None:
                return NotImplemented
        return graph.results(op, args, kwargs, program(tensors, call.numbers), program.lengths)

    def _resized(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An out= call with empty tensors, which take the size of the result: they are given its memory."""
        target, args, kwargs, outs = graph.functional(op, args, kwargs)
        values = NotImplemented if target is op else self(target, args, kwargs)
        if values is NotImplemented:
            return NotImplemented
        for out, value in zip(outs, values if isinstance(values, tuple) else (values,), strict=True):
            if out.dtype == value.dtype:
                out.set_(value)
            else:
                out.resize_(value.shape).copy_(value)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _new_pattern(self, op: Any, call: Call, args: Any, kwargs: Any) -> Pattern | None:
        with self._lock:
            if not graph.is_readable(op) or not _is_inductors(op):
                self._never.add(op)
                return None
            written = _written(op, args, kwargs)
            return self._patterns.setdefault(call.pattern, Pattern(written))

    def _compile(
        self, op: Any, args: Any, kwargs: Any, pattern: Pattern, tensors: list[torch.Tensor], numbers: list[Any]
    ) -> Program | None:
        from torch._dynamo.convert_frame import compile_lock

        # Inductor compiles one graph at a time. A thread that compiles and waits for this one must not be waited for.
        if not compile_lock.acquire(timeout=LOCK_TIMEOUT):
            log.debug("%s is not compiled: another compilation does not end", op)
            return None
        try:
            with self._lock:
                program = pattern.find(tensors, numbers)  # another thread may have been faster
                if program is None and pattern.refused is None:
                    program = self._compile_locked(op, args, kwargs, pattern, tensors, numbers)
                return program
        finally:
            compile_lock.release()

    def _compile_locked(
        self, op: Any, args: Any, kwargs: Any, pattern: Pattern, tensors: list[torch.Tensor], numbers: list[Any]
    ) -> Program | None:
        if pattern.count() >= MAX_PROGRAMS:
            pattern.refused = f"{MAX_PROGRAMS} programs do not cover its calls"
            return None
        slots = slotted(op, args, kwargs)
        # A number that has had another value before may have yet another next time.
        vary = bool(numbers) and pattern.numbers_vary and any(n != tuple(numbers) for n in pattern.by_numbers)
        try:
            if vary:
                try:
                    program = compile_call(op, slots, tensors, numbers, vary=True)
                    if not program.serves(tensors, numbers):
                        raise Refused("its guards do not hold for the call it was compiled from")
                    pattern.varying.insert(0, program)
                    self.compiled += 1
                    return program
                except Refused as error:
                    if error.wrong:
                        raise
                    log.debug("%s: numbers are compiled in: %s", op, error)
                    pattern.numbers_vary = False
            program = compile_call(op, slots, tensors, numbers, vary=False)
        except Refused as error:
            log.debug("%s is not compiled: %s", op, error)
            if not error.wrong:
                pattern.refused = str(error)
            return None
        pattern.by_numbers.setdefault(tuple(numbers), []).insert(0, program)
        self.compiled += 1
        return program


def _is_unsized(out: Any) -> bool:
    return isinstance(out, torch.Tensor) and out.dim() == 1 and out.numel() == 0


def _written(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Which of the call's tensors the operator writes."""
    rules = signature(op)
    if not rules.written:
        return ()
    slot_args, slot_kwargs = slotted(op, args, kwargs)
    found: set[int] = set()
    for name, value in [*zip(rules.names, slot_args, strict=False), *slot_kwargs.items()]:
        if name in rules.written:
            for slot in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(slot, Slot):
                    found.add(slot.index)
    return tuple(sorted(found))


def _apart(tensors: list[torch.Tensor], ranges: list[tuple[int, int]], written: tuple[int, ...]) -> list[torch.Tensor]:
    """``tensors`` with copies for those that are read where another is written: a program would write too early."""
    result = tensors
    for w in written:
        first, end = ranges[w]
        for i, (start, stop) in enumerate(ranges):
            if start < end and first < stop and i not in written:
                if result is tensors:
                    result = list(tensors)
                tensor = tensors[i]
                result[i] = empty(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype).copy_(tensor)
    return result


def _is_inductors(op: Any) -> bool:
    """Whether Inductor lowers or decomposes ``op`` itself."""
    from torch._inductor import lowering

    base = graph.out_of_place(op)
    if base in decompositions.table() or torch._C.DispatchKey.Autograd in base.py_kernels:
        return True  # the second: torch decomposes it in Python while it is traced
    lower = lowering.lowerings.get(base)
    return lower is not None and not getattr(lower, "_is_fallback_handler", False)
