"""The Python program Inductor writes around our kernels: imports, allocation, launches."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config
from torch._inductor.codegen.common import DeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen


class VulkanWrapper(PythonWrapperCodegen):
    """PythonWrapperCodegen that launches Vulkan kernels and allocates Vulkan buffers."""

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

    def write_header(self) -> None:
        super().write_header()
        self.imports.splice(
            """
            from vkinductor.codegen.launch import vulkan_kernel
            from vkinductor.codegen.recording import recorded
            from vkinductor.device.storage import empty as empty_strided_vulkan
            """,
            strip=True,
        )

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
            return PythonWrapperCodegen.make_allocation(
                self, name, device, dtype, shape, stride, allocation_shape, is_pinned and torch.cuda.is_available()
            )
        shape_text = self.codegen_python_shape_tuple(shape)
        allocated = self.codegen_python_shape_tuple(shape if allocation_shape is None else allocation_shape)
        stride_text = self.codegen_python_shape_tuple(stride)
        line = f"{name} = empty_strided_vulkan({allocated}, {stride_text}, {dtype})"
        return line if allocated == shape_text else f"{line}.as_strided({shape_text}, {stride_text})"

    def write_kernel_call(self, name: str, args: list[str], items: str) -> None:
        """One launch: ``name.run(args..., items of x)``."""
        self.writeline(f"{name}.run({', '.join([*args, items])})")


class VulkanSubgraphWrapper(SubgraphPythonWrapperCodegen):
    """The same inside a subgraph: a partition, or the body of a nested region, a branch or a loop.

    All of them are functions of a list and can be recorded; a body that is more than kernels refuses its capture.
    """

    def __init__(self, subgraph_name: str, parent_wrapper: Any, partition_signatures: Any = None) -> None:
        self.recording: bool = parent_wrapper.recording
        super().__init__(subgraph_name, parent_wrapper, partition_signatures)

    def write_launcher_fn_call_get_indent(self) -> int:
        if self.recording:
            self.prefix.writeline("@recorded")
        return super().write_launcher_fn_call_get_indent()

    make_allocation = VulkanWrapper.make_allocation
    write_kernel_call = VulkanWrapper.write_kernel_call


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
