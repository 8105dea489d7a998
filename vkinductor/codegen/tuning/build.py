"""Compiling a candidate: one operator through Inductor, or one kernel, down to the dispatches of one call.

Two steps. ``lower`` runs Inductor, one at a time. ``captured`` runs the generated program on stand-ins for memory; that
is when its pipelines are made, and any number of threads may do it at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from vkinductor.device.registry import registry
from vkinductor.runtime.replay.capture import Launch

from ..settings import FIXED
from .family import Operand, Operation

# Inductor's settings while a candidate is compiled; those of a compilation around it must not be seen.
_SETTINGS: dict[str, Any] = {
    **FIXED,
    "graph_partition": False,
    "size_asserts": False,
    "alignment_asserts": False,
    "force_disable_caches": True,
    "vulkan.tune": False,
    "vulkan.fallback": "",
    "vulkan.check": "",
    "vulkan.check_bounds": False,
    "vulkan.report": 0,
}


class NotBuilt(Exception):
    """The candidate is no program of kernels; the message says why."""


@dataclass(frozen=True)
class Output:
    """A result: of this size, stride, offset (in elements) and dtype in ``resource``."""

    resource: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Built:
    """The dispatches of one call. ``sizes``: bytes of each resource; operands come first, and may be ``outputs``.
    ``kept``: addresses of those that are the program's own memory, which lives as long as ``program``."""

    launches: tuple[Launch, ...]
    sizes: tuple[int, ...]
    operands: int
    outputs: tuple[Output, ...]
    kept: Mapping[int, int]
    program: Callable[[list[Any]], Any]

    @property
    def made(self) -> tuple[int, ...]:
        """The resources of results that are no operands."""
        return tuple(dict.fromkeys(o.resource for o in self.outputs if o.resource >= self.operands))


def lower(operation: Operation, forced: Callable[[], AbstractContextManager[Any]]) -> Callable[[list[Any]], Any]:
    """A program for ``operation``, compiled inside ``forced()``.

    Only on the thread that compiles eager operators (eager/program.py): the caller's may be inside a compilation.
    Raises whatever Inductor raises, and NotBuilt.
    """
    from torch._functorch import config as functorch_config
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from ..decompositions import table

    with FakeTensorMode(shape_env=ShapeEnv()):
        fakes = [torch.empty_strided(o.size, o.stride, dtype=o.dtype, device="vulkan") for o in operation.operands]
    compiled: list[Any] = []

    def inner(module: Any, *args: Any, **kwargs: Any) -> Any:
        compiled.append(compile_fx_inner(module, *args, **kwargs))
        return compiled[-1]

    module = graph_of(operation)
    with (
        forced(),
        _uncounted(),
        torch.no_grad(),
        functorch_config.patch(enable_autograd_cache=False),
        config.patch(_SETTINGS),
    ):
        compile_fx(module, fakes, inner_compile=inner, config_patches=dict(_SETTINGS), decompositions=table())
    if len(compiled) != 1:
        raise NotBuilt(f"it became {len(compiled)} graphs")
    program: Callable[[list[Any]], Any] = compiled[0]
    return program


def graph_of(operation: Operation) -> fx.GraphModule:
    """``operation``'s function as a graph with one input an operand."""
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    inputs = [fx.Proxy(graph.placeholder(f"t{i}"), tracer) for i in range(len(operation.operands))]
    assert operation.function is not None
    result: Any = operation.function(*inputs)
    graph.output((result.node,))
    return fx.GraphModule({}, graph)


@contextlib.contextmanager
def _uncounted() -> Iterator[None]:
    """Dynamo's and Inductor's counters are those of the user's graphs."""
    from torch._dynamo import utils

    counters = {name: dict(counts) for name, counts in utils.counters.items()}
    try:
        yield
    finally:
        utils.counters.clear()
        for name, counts in counters.items():
            utils.counters[name].update(counts)


def program_of(
    operation: Operation, candidate: Any, forced: Callable[[], AbstractContextManager[Any]]
) -> Callable[[list[Any]], Any]:
    """The program of a ``candidate``; see ``lower``. Raises what that raises, and what ``operation.program`` raises."""
    return lower(operation, forced) if operation.program is None else operation.program(candidate)


def captured(program: Callable[[list[Any]], Any], operands: Sequence[Operand]) -> Built:
    """What one call dispatches. Makes pipelines. A graph's constants (counters are) stay where they are.

    Raises CaptureRefused when it does other things than dispatch, ShaderCompileError, UnsupportedError.
    """
    device = registry.open()
    with device.stream.captures.on(device.stream) as capture:
        stand_ins = []
        for operand in operands:
            layout = device.layout(operand.size, operand.stride, operand.dtype)
            stand_ins.append(device.at(layout, capture.resource(layout.nbytes, layout)))
        for constant in (getattr(program, "constants", None) or {}).values():
            if isinstance(constant, torch.Tensor) and constant.device.type == "vulkan":
                capture.keep(constant.untyped_storage().data_ptr(), constant.untyped_storage().nbytes())
        results = program(list(stand_ins))
        outputs = []
        for result in results:
            if not isinstance(result, torch.Tensor) or result.device.type != "vulkan":
                raise NotBuilt("its result is no tensor of the device")
            resource = capture.pointer(result.untyped_storage().data_ptr()).resource
            size, stride = tuple(result.size()), tuple(result.stride())
            outputs.append(Output(resource, size, stride, int(result.storage_offset()), result.dtype))
    if not capture.launches or not outputs:
        raise NotBuilt("it launches no kernel" if outputs else "it has no result")
    return Built(
        tuple(capture.launches), tuple(capture.sizes), len(operands), tuple(outputs), capture.kept, program
    )  # fmt: skip
