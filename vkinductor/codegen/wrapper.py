"""The Python program Inductor writes around our kernels: imports, allocation, launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config, ir
from torch._inductor.codegen.common import DeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen, WrapperLine
from torch._inductor.virtualized import V

from . import checks, fallbacks
from .compat import name_sizes, setting
from .report import note_extern


class _Indented(WrapperLine):
    """Opens a block of the program with ``header``; closes it without one."""

    def __init__(self, header: str | None) -> None:
        self.header = header

    def codegen(self, code: Any) -> None:
        if self.header is None:
            code.do_unindent()
            return
        code.writeline(self.header)
        code.do_indent()


class _Vulkan(PythonWrapperCodegen):
    """What programs and subgraphs write alike: launches of Vulkan kernels, allocations of Vulkan buffers."""

    checked_launches: list[tuple[str, str, list[list[str]]]]

    def codegen_inputs(self) -> None:
        name_sizes(self.get_graph_inputs())
        super().codegen_inputs()

    def make_allocation(
        self,
        name: str,
        device: Any,
        dtype: Any,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        if device.type != "vulkan":
            # Inductor pins what is copied to without blocking; this device has no allocator for that.
            pinned = is_pinned and torch.cuda.is_available()
            return super().make_allocation(name, device, dtype, shape, stride, allocation_shape, pinned)
        shape_text = self.codegen_python_shape_tuple(shape)
        allocated = self.codegen_python_shape_tuple(shape if allocation_shape is None else allocation_shape)
        stride_text = self.codegen_python_shape_tuple(stride)
        line = f"{name} = empty_strided_vulkan({allocated}, {stride_text}, {dtype})"
        return line if allocated == shape_text else f"{line}.as_strided({shape_text}, {stride_text})"

    def write_kernel_call(self, name: str, args: list[str], items: str) -> None:
        """One launch: ``name.run(args..., items of x)``."""
        self.writeline(f"{name}.run({', '.join([*args, items])})")

    def checked_launch(self, kernel: str, buffers: list[list[str]]) -> int:
        """The number of a launch that reports indices of these buffers."""
        node = V.graph.scheduler.current_node if V.graph.scheduler is not None else None
        nodes = () if node is None else node.get_nodes()
        where = fallbacks.position(origin for n in nodes for origin in getattr(n.node, "origins", None) or ())
        self.checked_launches.append((kernel, where, buffers))
        return len(self.checked_launches) - 1

    def enter_extern(self, node: Any) -> Callable[[], None] | None:
        """Before an operator that is no kernel of ours: the policy of the graph, if it has one, holds around it.

        Returns what is to be called after it. Raises FallbackError when it is certain to run on the CPU and must not.
        """
        if isinstance(node, ir.MultiOutput) or not fallbacks.is_on_device(node):
            return self._learning(node)
        note_extern(node)
        policy = setting("fallback")
        if not policy:
            return self._learning(node)
        if policy == "error":
            fallbacks.forbid(node)
        self.writeline(_Indented(f"with fallback_site({policy!r}, {fallbacks.node_position(node)!r}):"))
        after = self._learning(node)

        def leave() -> None:
            self.writeline(_Indented(None))
            if after is not None:
                after()

        return leave

    def _learning(self, node: Any) -> Callable[[], None] | None:
        """Tells a graph that is checked what an operator has computed that is no kernel of ours."""
        found = checks.note_extern(self.checked, node) if hasattr(self, "checked") else None
        return None if found is None else lambda: self.writeline(f"checks.learn({found[0]!r}, {found[1]})")


class VulkanWrapper(_Vulkan):
    """A whole program."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Inductor's factory: a subgraph (cond, while_loop) writes into its parent's program."""
        if is_subgraph:
            assert subgraph_name is not None
            assert parent_wrapper is not None
            return VulkanSubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)
        return VulkanWrapper()

    def __init__(self) -> None:
        super().__init__()
        # Asked here: Inductor does not partition subgraphs and switches the option off while it writes them.
        self.recording = bool(config.graph_partition)
        # Launches that report indices out of range: kernel, source line, buffers of each check.
        self.checked_launches = []
        self._partition_calls: list[tuple[int, int]] = []  # lines of the program, from and to
        self._is_one_partition = False

    def write_header(self) -> None:
        super().write_header()
        self.imports.splice(
            """
            from vkinductor.codegen.checks import checked_graph
            from vkinductor.codegen.index_errors import index_error_buffer, report_indices
            from vkinductor.codegen.launch import vulkan_kernel
            from vkinductor.codegen.recording import recorded, recorded_as, whole_program
            from vkinductor.device.policy import fallback_site
            from vkinductor.device.storage import empty as empty_strided_vulkan
            """,
            strip=True,
        )
        if setting("check_bounds"):
            self.header.writeline("index_errors = index_error_buffer()")

    def codegen_inputs(self) -> None:
        super().codegen_inputs()
        policy = setting("check")
        if policy:
            self.checked = checks.open_graph(policy)
            names = ", ".join(V.graph.graph_input_names)
            self.prefix.writeline(f"checks = checked_graph({self.checked})")
            self.prefix.writeline(f"checks.begin([{names}])")

    def check_kernel(self, name: str, nodes: Any, live: Any) -> None:
        """After a launch: compare what it computed, where the graph is to be checked."""
        if setting("check"):
            number, buffers = checks.note_kernel(self.checked, name, nodes, live)
            parts = [f"{buffer!r}: ({node!r}, {variable})" for buffer, (node, variable) in buffers.items()]
            self.writeline(f"checks.compare({number}, {{{', '.join(parts)}}})")

    def codegen_partition_call(self, partition_id: int, partition_signatures: Any) -> None:
        first = len(self.lines)
        super().codegen_partition_call(partition_id, partition_signatures)
        self._partition_calls.append((first, len(self.lines)))

    def generate_after_suffix(self, result: Any) -> None:
        super().generate_after_suffix(result)
        if self._is_one_partition:
            result.writeline(f"whole_program({self.all_partition_names[0]})")

    def generate_return(self, output_refs: list[str]) -> None:
        alone = self._partition_calls == [(0, len(self.lines))]
        self._is_one_partition = self.recording and alone and not self.checked_launches
        if self.checked_launches:
            self.wrapper_call.writeline(f"report_indices(index_errors, {self.checked_launches!r})")
        super().generate_return(output_refs)


class VulkanSubgraphWrapper(_Vulkan, SubgraphPythonWrapperCodegen):
    """The same inside a subgraph: a partition, or the body of a nested region, a branch or a loop.

    All of them are functions of a list and can be recorded; a body that is more than kernels refuses its capture.
    """

    def __init__(self, subgraph_name: str, parent_wrapper: Any, partition_signatures: Any = None) -> None:
        self.recording: bool = parent_wrapper.recording
        self.checked_launches = parent_wrapper.checked_launches  # the whole program reports at its end
        super().__init__(subgraph_name, parent_wrapper, partition_signatures)

    def write_launcher_fn_call_get_indent(self) -> int:
        if self.recording:
            form = "persistent" if setting("persistent") else setting("chained")
            self.prefix.writeline("@recorded" if form == "auto" else f"@recorded_as({form!r})")
        return super().write_launcher_fn_call_get_indent()


class VulkanDeviceOps(DeviceOpOverrides):
    """There is one device and one stream: guards and stream look-ups are nothing."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"{name} = lambda index: 0"

    def device_guard(self, device_idx: int) -> str:
        return "torch._ops.contextlib.nullcontext()"

    def set_device(self, device_idx: int) -> str:
        return "pass"

    def synchronize(self) -> str:
        return "torch.vulkan.synchronize()"
