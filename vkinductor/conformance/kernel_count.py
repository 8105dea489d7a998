"""Counts the kernels of a graph, and those Inductor's own GPU code generation would make of the same graph.

Neither Triton nor another GPU is needed: fusion is decided by Inductor's scheduler, which asks the device's scheduling
class what may fuse. The same post-grad graph is lowered again for this device, with Triton's class in the place of ours
and without our lowerings, up to the point where code would be written.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock


@dataclass
class KernelCounts:
    """Kernels of the graphs compiled in ``counting()``: ours, and Inductor's for a GPU.

    A fused group counts one, an extern kernel (a matrix product, a convolution, a sort) one on either side, a template
    with its epilogue one. Views, and buffers that others write into, count nothing.
    """

    ours: int = 0
    inductor: int = 0
    groups: list[list[str]] = field(default_factory=list)  # of each graph: Inductor's, then ours

    @property
    def ratio(self) -> float:
        """Ours over Inductor's."""
        return self.ours / max(1, self.inductor)


@contextlib.contextmanager
def counting() -> Iterator[KernelCounts]:
    """Count in the graphs that are compiled inside (caches are off there)."""
    from torch._guards import CompileContext
    from torch._inductor import compile_fx, config
    from torch._inductor.graph import GraphLowering

    counts = KernelCounts()

    class CountedGraph(GraphLowering):
        """A graph on its way through Inductor."""

        def run(self, *args: Any, **kwargs: Any) -> Any:
            if CompileContext.try_get() is not None:  # a graph of Dynamo's, not an eager operator of the device
                groups = _lowered_for_triton(self, args)
                counts.inductor += len(groups)
                counts.groups.append(groups)
            return super().run(*args, **kwargs)

        def _update_scheduler(self) -> None:
            super()._update_scheduler()
            if CompileContext.try_get() is not None:
                groups = kernels(self.scheduler.nodes)
                counts.ours += len(groups)
                counts.groups.append(groups)

    with mock.patch.object(compile_fx, "GraphLowering", CountedGraph), config.patch(force_disable_caches=True):
        yield counts


def kernels(nodes: Any) -> list[str]:
    """A line for each of the scheduler's ``nodes`` that becomes a kernel: what it computes."""
    from torch._inductor import ir, scheduler

    lines = []
    for node in nodes:
        if isinstance(node, scheduler.NopKernelSchedulerNode):
            continue
        inner: Any = getattr(node, "node", None)
        if isinstance(node, scheduler.ExternKernelSchedulerNode):
            if isinstance(inner, ir.MultiOutput):  # one result of the kernel before
                continue
            lines.append(f"extern {getattr(inner, 'op_overload', None) or inner.get_kernel_name()}")
            continue
        parts = [n for n in node.get_nodes() if getattr(n, "node", None) is not None]
        lines.append(" + ".join(_describe(part.node) for part in parts))
    return lines


def _describe(node: Any) -> str:
    kind = type(getattr(node, "data", node)).__name__
    origins = sorted({str(origin.target).removeprefix("aten.") for origin in node.get_origins()})
    return f"{kind}({', '.join(origins)})"


def _lowered_for_triton(graph: Any, args: tuple[Any, ...]) -> list[str]:
    """The kernels of ``graph`` (not lowered yet) as Triton's scheduling fuses it."""
    from torch import fx
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    module = fx.GraphModule(graph.module, copy.deepcopy(graph.module.graph))
    twin = GraphLowering(
        module,
        example_inputs=graph.example_inputs,
        shape_env=graph._shape_env,
        is_inference=graph.is_inference,
        is_backward=graph.is_backward,
        layout_opt=False,
    )
    with _triton_scheduling(), V.set_graph_handler(twin):
        twin.run(*args)
        twin.init_wrapper_code()
        twin._update_scheduler()
        return kernels(twin.scheduler.nodes)


@contextlib.contextmanager
def _triton_scheduling() -> Iterator[None]:
    """Triton's scheduling class and Inductor's own lowerings for the device, inside."""
    from torch._inductor import lowering
    from torch._inductor.codegen.common import device_codegens
    from torch._inductor.codegen.triton import TritonScheduling

    class Fusing(TritonScheduling):
        """Decides what fuses, and no more: whether registers would spill is asked of the Triton compiler otherwise."""

    registered = device_codegens["vulkan"]
    stock = {target: _original(function) for target, function in lowering.lowerings.items()}
    with (
        mock.patch.object(registered, "scheduling", Fusing),
        mock.patch.dict(lowering.lowerings, stock, clear=True),
    ):
        yield


def _original(function: Any) -> Any:
    """Inductor's lowering under one of ours."""
    while getattr(function, "vkinductor", False) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
