"""Kernels written by hand as templates, with Inductor's pointwise epilogues fused into their stores.

The template computes one output element at a time into ``value`` and its flat position into ``xindex``; what
follows is generated like any pointwise kernel over x, starting from that value instead of a load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.dependencies import MemoryDep
from torch._inductor.ir import FixedLayout, FlexibleLayout, IRNode, TemplateBuffer
from torch._inductor.utils import sympy_product, upcast_compute_type
from torch._inductor.virtualized import V, ops
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.value_ranges import ValueRanges

from vkinductor.runtime.abi import ArgumentLayout

from .compat import mark_value_expressions
from .kernel import VulkanKernel
from .source import KernelText, assemble
from .types import glsl_type
from .vectorize import scalar


class VulkanTemplateBuffer(TemplateBuffer):
    """An IR node computed by a template.

    ``plan(kernel)`` returns the template's name, its context, and the number of workgroups (a sympy expression).
    ``name``: what it computes, for the kernel's name. ``fuses``: whether what follows may go into its stores.
    ``uses``: an expression with the symbols that the plan reads and no size or stride of the node has.
    """

    def __init__(
        self,
        layout: FixedLayout,
        inputs: Sequence[IRNode],
        plan: Callable[[Any], Any],
        name: str = "matmul",
        fuses: bool = True,
        uses: Any = sympy.S.Zero,
    ) -> None:
        super().__init__(layout=layout, inputs=inputs, make_kernel_render=None)
        self.plan = plan
        self.kernel_name = name
        self.allow_epilogue_fusion = fuses
        self.uses = uses

    def get_kernel_name(self) -> str:
        return self.kernel_name

    def extract_read_writes(self, normalize: bool = False) -> Any:
        # Where sizes vary, what reads the result has its indices simplified; only an equal one can be fused.
        deps = super().extract_read_writes(normalize)

        def simplified(dep: Any) -> Any:
            return dataclasses.replace(dep, index=V.graph.sizevars.simplify_with_ranges(dep.index, dep.ranges))

        writes = [simplified(dep) if isinstance(dep, MemoryDep) else dep for dep in deps.writes]
        return dataclasses.replace(deps, writes=OrderedSet(writes))

    def get_free_symbol_uses(self, unbacked_only: bool = False) -> Any:
        symbols = super().get_free_symbol_uses(unbacked_only)
        return symbols if unbacked_only else symbols | self.uses.free_symbols


class VulkanTemplateKernel(VulkanKernel):
    """One template with its epilogue."""

    def __init__(self, node: VulkanTemplateBuffer) -> None:
        self.node = node
        self.workgroups: Any = 1
        numel = sympy_product(node.get_size())
        super().__init__({"x": numel}, features=SIMDKernelFeatures([], numel))
        buffers: list[Any] = [V.graph.get_buffer(inp.get_name()) for inp in self.inputs]
        fits = self.scheduling().can_use_32bit_indexing(numel, [*buffers, node])
        self.set_index_dtype(torch.int32 if fits else torch.int64)

    @staticmethod
    def scheduling() -> Any:
        from .scheduling import VulkanScheduling

        return VulkanScheduling

    @property
    def inputs(self) -> list[Any]:
        """The operands, as buffers or reinterpreted views of buffers."""
        return list(self.node.inputs)

    def operand(self, position: int) -> Callable[[str], str]:
        """A function from a GLSL index into operand ``position`` (relative to its view) to GLSL that loads there."""
        operand = self.inputs[position]
        name, dtype = operand.get_name(), operand.get_dtype()
        var = self.args.input(name)
        entry = glsl_type(dtype)
        offset = operand.get_layout().offset
        shift = "" if offset == 0 else f" + {self.size(offset)}"
        wide = self.index_dtype != "int"

        def load(index: str) -> str:
            if not wide:
                return entry.load.format(f"{var}.d[{index}{shift}]")
            address = f"uint64_t({var}) + uint64_t({index}{shift}) * {entry.nbytes}ul"
            return entry.load.format(f"{entry.buffer}({address}).d[0]")

        return load

    def size(self, expr: Any) -> str:
        """GLSL of a size or stride (sizes that vary become kernel arguments)."""
        return f"({self.index_to_str(sympy.sympify(expr))})"

    def epilogue(self, nodes: Sequence[Any]) -> tuple[list[str], list[str]]:
        """Generate the stores: the template's own output, then the fused nodes. Returns (indexing, body) lines."""
        dtype = upcast_compute_type(self.node.get_dtype())
        with self:
            value = CSEVariable("value", ValueRanges.unknown(), dtype, ())
            self.row_values.add(value)
            indices = self.split_and_set_ranges(([*self.node.get_size()], []))
            indexer = self.node.get_layout().make_indexer()
            ops.store(self.node.get_name(), indexer(indices[0]), value)
            # No decide_inplace_update(): other workgroups still read the operands when the first outputs are stored.
            for node in nodes:
                mark_value_expressions(node._body)
                node.codegen(self.split_and_set_ranges(node.get_ranges()))
            self.codegen_body()
        with V.set_kernel_handler(self):
            marked = [line for section in self.pending for line in section.resolve(self).body]
            body = scalar(marked, list(self.accesses.values()))
        return self.indexing_code.getvalue().splitlines(), body

    def build(self, epilogue_nodes: Sequence[Any]) -> KernelText:
        """The finished kernel."""
        template, values, self.workgroups = self.node.plan(self)
        indexing, body = self.epilogue(epilogue_nodes)
        with V.set_kernel_handler(self):
            pointers, fields, nbytes = self._arguments()
        context = {**values, "index": self.index_dtype, "pointers": pointers, "indexing": indexing, "body": body}
        layout = ArgumentLayout(tuple(fields))
        return assemble(template, layout, self.device_info, context, 1, sorted(self.written), nbytes)

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        """Launch with the number of workgroups the plan computed."""
        wrapper: Any = V.graph.wrapper_code
        wrapper.write_kernel_call(name, self.launch_arguments(name), wrapper.codegen_python_sizevar(self.workgroups))
        self.check_results(name)


def realized(x: Any) -> Any:
    """``x`` as something a kernel can address: a buffer or a strided view of one, without a copy when possible."""
    return ir.ExternKernel.realize_input(x)


def laid_out(x: Any) -> Any:
    """``realized``, with strides that stay: Inductor may pad those of a buffer whose layout is still open."""
    operand = realized(x)
    if isinstance(operand.get_layout(), FlexibleLayout):
        operand.freeze_layout()
    return operand
