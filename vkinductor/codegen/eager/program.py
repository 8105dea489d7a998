"""Compiling one call into a program, with guards that tell which other calls it serves."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch.fx.node import map_aggregate

from vkinductor.runtime.errors import OperatorError, find

from ..decompositions import OURS, table
from ..settings import FIXED
from . import graph
from .formulas import COMPUTE
from .signature import Constant, Slot, is_size, with_constants

T = TypeVar("T")

# A call of torch's own kernels in a program that Inductor wrote (the seeds of random numbers are the device's).
_EXTERN = re.compile(r"(?m)^[ \t]+(?:\w+ = )?(?:torch\.ops|aten|extern_kernels)\.(?!aten\.randint|randint)")
# How guards name the symbols that they were asked about.
_NAME = re.compile(r"L\['t(\d+)'\]")

# One operator is not worth a submit of its own: it is never recorded.
_OVERRIDES = {**FIXED, "graph_partition": False, "size_asserts": False, "alignment_asserts": False}


class Refused(Exception):
    """This call cannot be compiled; the message says why. ``wrong``: because it is wrong, and eager will say how."""

    def __init__(self, why: str, wrong: bool = False) -> None:
        super().__init__(why)
        self.wrong = wrong


@dataclass(eq=False)
class Program:
    """A compiled call.

    ``serves(tensors, numbers)``: whether the guards hold for these. ``run(inputs)``: the graph's outputs.
    ``numbers``: for each number of the call how it is passed: a dtype, int, or None when it is compiled in.
    ``used``: when it last served a call, on its pattern's clock.
    """

    serves: Callable[[Sequence[torch.Tensor], Sequence[Any]], bool]
    run: Callable[[list[Any]], Sequence[torch.Tensor]]
    numbers: tuple[Any, ...]
    lengths: tuple[int, ...]
    used: int = 0

    def __call__(self, tensors: list[torch.Tensor], numbers: Sequence[int | float]) -> Sequence[torch.Tensor]:
        inputs: list[Any] = list(tensors)
        for how, value in zip(self.numbers, numbers, strict=True):
            if how is not None:
                inputs.append(value if how is int else torch.tensor(value, dtype=how))
        return self.run(inputs)


def compile_call(
    op: Any, slots: tuple[Any, Any], tensors: Sequence[torch.Tensor], numbers: Sequence[int | float], vary: bool
) -> Program:
    """Compile ``op`` for calls like this one. ``vary``: numbers are inputs of the program, as far as they can be.

    Raises Refused.
    """
    return in_clean_thread(lambda: _Compilation(op, slots, tensors, numbers, vary).program())


class _Compilation:
    """Everything about one compilation; used once."""

    def __init__(
        self, op: Any, slots: tuple[Any, Any], tensors: Sequence[torch.Tensor], numbers: Sequence[Any], vary: bool
    ) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.op = op
        self.slots = slots
        self.tensors = tensors
        self.numbers = numbers
        self.vary = vary
        # Equal sizes get symbols of their own, so that the next call may have different ones.
        self.shape_env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.shape_env)
        # What the guards speak of: (symbol, Python expression of it over ``t`` and ``n``).
        self.symbols: list[tuple[Any, str]] = []

    def program(self) -> Program:
        from torch._functorch import config as functorch_config
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        vary = self.vary
        inputs = [self._fake(i, tensor) for i, tensor in enumerate(self.tensors)]
        try:
            result, lengths = self._try(inputs)
        except Refused as error:
            if "Unable to cast" not in str(error):
                raise
            self.vary = False
            double = torch.float64 in [t.dtype for t in self.tensors]
            self.slots = with_constants(self.op, self.slots, list(self.numbers), double)
            result, lengths = self._try(inputs)
        passed: tuple[Any, ...] = (None,) * len(self.numbers)
        if self.vary and graph.formula(self.op, result) is not None:
            assert result is not None
            passed = (COMPUTE[result],) * len(self.numbers)
            dtypes = [t.dtype for t in self.tensors]
            module = graph.build_formula(self.op, self.slots, dtypes, len(passed), result)
        else:
            if self.vary:
                passed = tuple(int if size else None for size in is_size(self.op, self.slots, len(self.numbers)))
            values = [None if how else value for how, value in zip(passed, self.numbers, strict=True)]
            module = graph.build(self.op, self.slots, len(self.tensors), values, lengths)
        if vary and not any(passed):
            raise Refused("its numbers select code")
        inputs += [self._number(i, how) for i, how in enumerate(passed) if how is not None]
        compiled: list[tuple[Any, Any]] = []

        def inner(module: Any, *args: Any, **kwargs: Any) -> Any:
            code = compile_fx_inner(module, *args, **kwargs)
            compiled.append((module.graph, code))
            return code

        # Inductor's own cache is looked at inside ``inner``; AOTAutograd's would go round it.
        with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
            try:
                run: Any = compile_fx(
                    module, inputs, inner_compile=inner, config_patches=dict(_OVERRIDES), decompositions=table()
                )
            except Exception as error:  # the CPU is the answer to whatever Inductor cannot do
                users = find(error, OperatorError)  # but not to what a user did wrong
                if users is not None:
                    raise users from None
                raise Refused(f"{type(error).__name__}: {error}") from error
        if any(_EXTERN.search(str(getattr(code, "source_code", ""))) for _, code in compiled):
            raise Refused("Inductor leaves part of it to eager kernels")
        return Program(self._guards(), _shortest(run, module.graph, compiled), passed, tuple(lengths))

    def _fake(self, i: int, tensor: torch.Tensor) -> Any:
        """A fake with a symbol for each size and stride."""
        from torch._dynamo.source import ConstantSource
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        example = tensor
        if tensor.device.type != "cpu":
            # Without its storage: tensors that only read one are strangers to the graph. The offset says that nothing
            # is known of the alignment.
            with FakeTensorMode():
                room = 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True) if n) + 1
                base = torch.empty(max(room, 2), dtype=tensor.dtype, device=tensor.device)
                example = torch.as_strided(base, tensor.size(), tensor.stride(), 1).detach()
        context: Any = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim(), constraint_sizes=[None] * tensor.dim()
        )
        fake = self.mode.from_tensor(example, symbolic_context=context, source=ConstantSource(f"t{i}"))
        for where, values in (("shape", fake.shape), ("stride()", fake.stride())):
            self.symbols += [(v, f"t[{i}].{where}[{dim}]") for dim, v in enumerate(values)]
        return fake

    def _number(self, i: int, how: Any) -> Any:
        """A varying number as an input: a fake without dimensions, or a symbol."""
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        if how is not int:
            with self.mode:
                return torch.empty((), dtype=how)
        value, source = self.numbers[i], ConstantSource(f"n{i}")
        symbol = self.shape_env.create_symbol(value, source, DimDynamic.DYNAMIC, positive=value > 0)
        number = self.shape_env.create_symintnode(symbol, hint=value, source=source)
        self.symbols.append((number, f"n[{i}]"))
        return number

    def _try(self, fakes: Sequence[Any]) -> tuple[torch.dtype | None, list[int]]:
        """Run the operator on fakes: the dtype of its (only) result, and the lengths of the lists it returns.

        Raises Refused when it cannot.
        """
        from torch._dispatch.python import enable_python_dispatcher
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
            UnsupportedFakeTensorException,
            UnsupportedOperatorException,
        )
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        def fill(value: Any) -> Any:
            if isinstance(value, Constant):
                with self.mode:
                    return torch.scalar_tensor(value.value, dtype=value.dtype, device="vulkan")
            if not isinstance(value, Slot):
                return value
            return fakes[value.index] if value.kind == "tensor" else self.numbers[value.index]

        target, args, kwargs, written = graph.functional(self.op, *self.slots)
        filled: Any = [map_aggregate(part, fill) for part in (args, kwargs, written)]
        try:
            with self.mode, torch.no_grad(), enable_python_dispatcher(), _quiet():
                # A decomposition of ours tells shapes too, also where torch cannot.
                result = OURS[target](*filled[0], **filled[1]) if target in OURS else NotImplemented
                if result is NotImplemented:  # none, or one that leaves this call to torch
                    result = target(*filled[0], **filled[1])
        except (
            DataDependentOutputException,
            DynamicOutputShapeException,
            UnsupportedFakeTensorException,
            UnsupportedOperatorException,
            NotImplementedError,
        ) as error:
            raise Refused(str(error)) from error
        except Exception as error:
            raise Refused(str(error), wrong=True) from error
        values = result if len(target._schema.returns) > 1 else (result,)
        if any(free_unbacked_symbols(v) for v in values if isinstance(v, torch.Tensor)):
            raise Refused("the shape of its result depends on the data")
        for out, value in zip(filled[2], values, strict=False):
            if tuple(out.shape) != tuple(value.shape) or not torch.can_cast(value.dtype, out.dtype):
                raise Refused("what is written has another shape or dtype than the result", wrong=True)
        single = values[0].dtype if len(values) == 1 and isinstance(values[0], torch.Tensor) else None
        return single, [len(v) for v in values if isinstance(v, (list, tuple))]

    def _guards(self) -> Callable[[Any, Any], bool]:
        """The conditions that compilation put on sizes, strides and numbers, as a Python function."""
        from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

        symbols = [(s, text) for s, text in self.symbols if isinstance(s, torch.SymInt)]
        condition = None
        if symbols:
            condition = self.shape_env.produce_guards_expression([s for s, _ in symbols], ignore_static=False)
        if not condition:
            return lambda t, n: True
        names = sorted({int(i) for i in _NAME.findall(condition)})
        lines = [f"    v{i} = {symbols[i][1]}" for i in names]
        condition = _NAME.sub(r"v\1", condition)
        scope: dict[str, Any] = dict(SYMPY_INTERP)
        exec("\n".join(["def serves(t, n):", *lines, f"    return {condition}"]), scope)
        return scope["serves"]


def _shortest(
    run: Callable[..., Any], asked: Any, compiled: list[tuple[Any, Any]]
) -> Callable[[list[Any]], Sequence[torch.Tensor]]:
    """``run`` without AOTAutograd's wrappers, which cost more than a small kernel.

    They have nothing to do when the graph that Inductor compiled takes and gives what was asked for: new results and
    arguments written inside, no views of arguments.
    """
    if len(compiled) == 1:
        graph_, code = compiled[0]
        if _signature(graph_) == _signature(asked):
            return code
    return lambda inputs: run(*inputs)


def _signature(graph_: Any) -> tuple[int, int]:
    """Numbers of inputs and outputs."""
    (outputs,) = next(n for n in reversed(graph_.nodes) if n.op == "output").args
    return sum(n.op == "placeholder" for n in graph_.nodes), len(outputs)


# Isolation -------------------------------------------------------------------------------------------------

THREAD_NAME = "vkinductor-eager"

_here = threading.local()


def is_compiling() -> bool:
    """Whether this thread is compiling an operator: what it calls must not be compiled in turn."""
    return getattr(_here, "compiling", False)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs each failure on fakes as an error of its own; here it only means that eager will raise it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def elsewhere(record: logging.LogRecord) -> bool:
        return not str(record.threadName).startswith(THREAD_NAME)

    logger.addFilter(elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(elsewhere)


@cache
def _compile_thread() -> ThreadPoolExecutor:
    """The one thread that compiles operators. It stays: torch 2.11 keeps a device guard in the storage of the thread
    that first makes fake tensors, and crashes when another one makes some after that thread has ended (seen on a CUDA
    build without a GPU)."""

    def mark() -> None:
        _here.compiling = True

    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREAD_NAME, initializer=mark)


def in_clean_thread(work: Callable[[], T]) -> T:
    """Run ``work`` on the thread that compiles.

    The caller may be inside autograd, autocast, a dispatch mode, or a compilation by Dynamo or Inductor: all of these
    are thread-local, and none of them must be seen here.
    """
    return _compile_thread().submit(work).result()
