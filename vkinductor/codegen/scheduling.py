"""Inductor's scheduling for the device: what may fuse, in which tiling, and handing kernels to the wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
from torch._inductor import config
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.simd_kernel_features import DisableReduction, EnableReduction
from torch._inductor.scheduler import FusedSchedulerNode
from torch._inductor.utils import get_fused_kernel_name, get_kernel_metadata
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from vkinductor.runtime import context

from . import heuristics, loop_limit, mixed_reductions, row_sorts, row_sums
from .epilogue_cost import operations
from .kernel import VulkanKernel
from .prefetch import prefetch_definition
from .report import note_kernel
from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel

# Not REDUCE_TO_SINGLE_ELEMENT: with it Inductor never splits a long reduction into two stages.
FEATURES = (
    BackendFeature.INPLACE_BUFFERS,
    BackendFeature.BUCKETIZE,
    BackendFeature.MASKED_SCATTER_WITH_INDEX,
    BackendFeature.SCAN,
    BackendFeature.SORT,
    BackendFeature.TUPLE_REDUCTION,
)


# What ``heuristics.override`` takes for the kernel of (a scheduling, features), as measured on the open device: filled
# in by the tuner.
tuned: Callable[[Any, Any], dict[str, Any]] | None = None


class VulkanScheduling(SIMDScheduling):
    """SIMDScheduling with one flat x dimension: transposes are index arithmetic."""

    kernel_type = VulkanKernel

    @classmethod
    def get_backend_features(cls, device: Any) -> OrderedSet[BackendFeature]:
        return OrderedSet(FEATURES)

    @classmethod
    def get_tiling_and_scores(
        cls,
        node_schedule: Any,
        numel: sympy.Expr,
        reduction_numel: sympy.Expr = sympy.S.One,
        coalesce_analysis: Any = None,
    ) -> tuple[dict[str, sympy.Expr], None]:
        return cls.create_tiling([numel], [reduction_numel]), None

    @classmethod
    def select_tiling(
        cls, node_schedule: Any, numel: sympy.Expr, reduction_numel: sympy.Expr = sympy.S.One, *rest: Any
    ) -> dict[str, sympy.Expr]:
        return cls.create_tiling([numel], [reduction_numel])

    def can_fuse(self, node1: Any, node2: Any) -> bool:
        """Whether one kernel can compute both."""
        nodes, usual = [*node1.get_nodes(), *node2.get_nodes()], super().can_fuse
        return (
            row_sorts.fusable(nodes)
            and row_sums.fusable(node1, node2, lambda: bool(usual(node1, node2)))
            and loop_limit.fusable(context.get().info, nodes)
            and _affordable(node1, nodes)
        )

    can_fuse_vertical = can_fuse
    can_fuse_horizontal = can_fuse

    def fuse(self, node1: Any, node2: Any) -> Any:
        """Both as one group; rows come before sums of what they come to."""
        found = row_sums.ordered(node1, node2)
        return super().fuse(node1, node2) if found is None else FusedSchedulerNode.fuse(*found)

    def codegen_node(self, node: Any) -> None:
        """Generate the kernel of a group of nodes."""
        rows, sums = row_sums.parted(node)
        if rows and sums:
            self.codegen_node_schedule(row_sums.features(self, rows, sums))
            return
        row_sums.restore(sums)
        super().codegen_node(node)

    def generate_node_schedule(self, nodes: Any, numel: Any, rnumel: Any) -> list[Any]:
        """``nodes`` and where loops over the row begin and end; a single row waits for all that it reads at once."""
        schedule: list[Any] = super().generate_node_schedule(nodes, numel, rnumel)
        return joined(schedule) if numel == 1 and heuristics.read_at_once(rnumel) else schedule

    def codegen_node_schedule(self, kernel_features: Any) -> None:
        """Generate one kernel, laid out as measured where that is known."""
        layout = {} if tuned is None else tuned(self, kernel_features)
        with heuristics.override(**layout):
            super().codegen_node_schedule(kernel_features)

    def codegen_mix_order_reduction(self, node: Any) -> None:
        """Generate one kernel of reductions over rows and sums over columns."""
        found, others = mixed_reductions.features(self, node)
        self.codegen_node_schedule(found)
        if others:
            self._codegen_nodes(others)

    def codegen_template(
        self,
        template_node: Any,
        epilogue_nodes: Any,
        prologue_nodes: Any,
        *,
        only_gen_src_code: bool = False,
        hint_override: int | None = None,
    ) -> str | None:
        """Generate a template kernel with ``epilogue_nodes`` fused into its stores."""
        assert not prologue_nodes, "no template accepts prologues"
        kernel = VulkanTemplateKernel(template_node.node)
        source = kernel.build(epilogue_nodes).python()
        if only_gen_src_code:
            return source
        nodes = [template_node, *epilogue_nodes]
        with V.set_kernel_handler(kernel):
            for node in nodes:
                node.mark_run()
        kernel.kernel_name = self.define_kernel(source, nodes, kernel)
        self._launch_template(kernel, nodes)
        return None

    def _launch_template(self, kernel: VulkanTemplateKernel, nodes: list[Any]) -> None:
        self.codegen_comment(nodes, kernel.kernel_name)
        kernel.call_kernel(kernel.kernel_name)
        V.graph.removed_buffers |= kernel.removed_buffers
        V.graph.inplaced_to_remove |= kernel.inplaced_to_remove
        self.free_buffers_in_scheduler()

    def define_kernel(self, src_code: str, node_schedule: Any, kernel: Any) -> str:
        """Write the kernel's definition into the wrapper once; return its name there."""
        kernel.scheduled = node_schedule
        wrapper = V.graph.wrapper_code
        if src_code in wrapper.src_to_kernel:
            note_kernel(wrapper.src_to_kernel[src_code], src_code, node_schedule, kernel)
            return wrapper.src_to_kernel[src_code]
        fused = get_fused_kernel_name(node_schedule, config.triton.descriptive_names)
        name = "_".join(["vk", fused, wrapper.next_kernel_suffix()])
        wrapper.src_to_kernel[src_code] = name
        note_kernel(name, src_code, node_schedule, kernel)
        prefetch_definition(src_code, name)
        origins, detailed = get_kernel_metadata(node_schedule, wrapper)
        wrapper.define_kernel(name, src_code.replace("KERNEL_NAME", repr(name)), f"{origins}\n{detailed}")
        return name


# Of where loops over the row end and begin.
_MARKS = (DisableReduction, EnableReduction)


def joined(schedule: list[Any]) -> list[Any]:
    """``schedule`` with one loop over the row where Inductor made two only because they read nothing in common."""
    loops: list[list[Any]] = [[]]
    for i, item in enumerate(schedule):
        if item is EnableReduction and i and schedule[i - 1] is DisableReduction:
            loops[-1].pop()
            loops.append([])
        else:
            loops[-1].append(item)
    made = loops[0]
    for loop in loops[1:]:
        names = {name for item in made if item not in _MARKS for name in item.get_operation_names()}
        body = loop[: loop.index(DisableReduction)] if DisableReduction in loop else loop
        apart = made[-1:] == [EnableReduction] or any(not names.isdisjoint(item.ancestors) for item in body)
        made = [*made, *((DisableReduction, EnableReduction) if apart else ()), *loop]
    return made


def _affordable(node: Any, nodes: list[Any]) -> bool:
    """Whether the template of ``node``, if it is one, takes what else is in ``nodes`` into its stores."""
    template = node.get_template_node() if node.is_template() else None
    if not isinstance(template, VulkanTemplateBuffer) or template.affords is None:
        return True
    return template.affords(operations(nodes))
