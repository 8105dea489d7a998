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

from .. import fallbacks
from . import graph
from .program import Program, Refused, compile_call, is_compiling
from .signature import Call, Slot, Unreadable, signature, slotted

log = logging.getLogger(__name__)

# Programs of one pattern; past this the least recently used one goes. Far more than calls that take turns usually
# need: one too few, and each of them compiles.
MAX_PROGRAMS = 64
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
    clock: int = 0  # calls served

    def find(self, tensors: list[torch.Tensor], numbers: list[Any]) -> Program | None:
        """A program that serves these."""
        for programs in (self.by_numbers.get(tuple(numbers), ()), self.varying):
            for program in programs:
                if program.serves(tensors, numbers):
                    self.clock = program.used = self.clock + 1
                    return program
        return None

    def add(self, numbers: tuple[Any, ...], program: Program, vary: bool) -> None:
        """Take in a program for ``numbers`` (and others, if they ``vary``) that serves a call now."""
        programs = self.varying if vary else self.by_numbers.setdefault(numbers, [])
        programs.insert(0, program)
        self.clock = program.used = self.clock + 1

    def evict(self, keep: int) -> None:
        """Drop the least recently used programs until there are ``keep``."""
        while self.count() > keep:
            oldest = min((p for ps in (self.varying, *self.by_numbers.values()) for p in ps), key=lambda p: p.used)
            # New containers, because another thread may be walking these.
            self.varying = [p for p in self.varying if p is not oldest]
            left = {n: [p for p in ps if p is not oldest] for n, ps in self.by_numbers.items()}
            self.by_numbers = {n: ps for n, ps in left.items() if ps}

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

    def forget(self, op: Any) -> None:
        """Drop the programs of an operator, and that it had none: what it is compiled from has changed."""
        with self._lock:
            self._never = {known for known in self._never if graph.out_of_place(known) is not op}
            kept = {k: p for k, p in self._patterns.items() if graph.out_of_place(k[0]) is not op}
            self._patterns = kept

    def why(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Why a call that came back as NotImplemented was not compiled."""
        dtypes = [t.dtype for value in (*args, *kwargs.values()) for t in fallback.tensors(value)]
        if op in self._never and not fallbacks.is_lowered(op):
            return fallbacks.reason(op, dtypes)
        if op in self._never:
            return "it returns views or numbers, which no program can"
        try:
            pattern = self._patterns.get(Call(op, args, kwargs).pattern)
        except Unreadable:
            pattern = None
        refused = None if pattern is None else pattern.refused
        return fallbacks.reason(op, dtypes) + ("" if refused is None else f" ({refused.splitlines()[0]})")

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
            if not graph.is_readable(op) or not fallbacks.is_lowered(op):
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
        pattern.evict(keep=MAX_PROGRAMS - 1)
        slots = slotted(op, args, kwargs)
        # A number that has had another value before may have yet another next time.
        vary = bool(numbers) and pattern.numbers_vary and any(n != tuple(numbers) for n in pattern.by_numbers)
        try:
            if vary:
                try:
                    program = compile_call(op, slots, tensors, numbers, vary=True)
                    if not program.serves(tensors, numbers):
                        raise Refused("its guards do not hold for the call it was compiled from")
                    pattern.add(tuple(numbers), program, vary=True)
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
        pattern.add(tuple(numbers), program, vary=False)
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
