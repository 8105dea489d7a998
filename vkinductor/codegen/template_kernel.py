"""Kernels written by hand as templates, with Inductor's pointwise epilogues fused into their stores.

The template computes one output element at a time into ``value`` and its flat position into ``xindex``; what
follows is generated like any pointwise kernel over x, starting from that value instead of a load.
"""

from __future__ import annotations

import dataclasses
import re
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

from .alignment import begins_aligned
from .compat import mark_value_expressions
from .kernel import VulkanKernel
from .operands import as_dtype
from .precision import half_powers, half_results
from .source import KernelText, assemble
from .types import glsl_type
from .vectorize import LOAD, Access, scalar, statements, unpacked, wide_load

HALVES = (torch.float16, torch.bfloat16)

# A declaration of an epilogue's body, and what names there that is computed.
_DECLARED = re.compile(r"(const )?(\w+) (tmp\w*) = (.*);")
_COMPUTED = re.compile(r"\b(?:tmp|value)\w*\b")


class VulkanTemplateBuffer(TemplateBuffer):
    """An IR node computed by a template.

    ``plan(kernel)`` returns the template's name, its context, and the number of workgroups (a sympy expression).
    ``name``: what it computes, for the kernel's name. ``fuses``: whether what follows may go into its stores.
    ``uses``: an expression with the symbols that the plan reads and no size or stride of the node has.
    ``also``: those of the inputs that the kernel writes, as further results. ``affords``(operations): whether what
    follows is worth fusing where it takes so many an element; None: whatever it takes.
    """

    def __init__(
        self,
        layout: FixedLayout,
        inputs: Sequence[IRNode],
        plan: Callable[[Any], Any],
        name: str = "matmul",
        fuses: bool = True,
        uses: Any = sympy.S.Zero,
        also: Sequence[Any] = (),
        affords: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(layout=layout, inputs=inputs, make_kernel_render=None)
        self.plan = plan
        self.kernel_name = name
        self.allow_epilogue_fusion = fuses
        self.uses = uses
        self.affords = affords
        nowhere = ir.NoneLayout(device=layout.device)
        self.mutations = [ir.MutationOutput(nowhere, buffer, self) for buffer in also]

    def get_outputs(self) -> list[Any]:
        return [self, *self.mutations]

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


@dataclasses.dataclass(frozen=True)
class Result:
    """One store of an epilogue: the GLSL line, its index, what is stored (a register expression) and where.

    ``aligned``: whether that buffer begins at a multiple of 16 bytes.
    """

    line: str
    index: str
    value: str
    pointer: str
    dtype: torch.dtype
    aligned: bool


@dataclasses.dataclass(frozen=True)
class Given:
    """An input of an epilogue that the caller of ``finish`` may bring for several elements at once.

    ``column``: whether each row has the same elements, else they lie as the result does.
    """

    access: Access
    column: bool

    @property
    def name(self) -> str:
        """Its value in the epilogue."""
        return f"given{self.access.number}"

    @property
    def register(self) -> str:
        """The GLSL type of that."""
        return glsl_type(self.access.dtype).register

    @property
    def at(self) -> str:
        """GLSL of the index of an element."""
        return "column" if self.column else "xindex"

    def single(self, shift: str = "") -> str:
        """GLSL that loads one element, ``shift`` further."""
        entry = glsl_type(self.access.dtype)
        address = f"uint64_t({self.access.var}) + uint64_t({self.at}{shift}) * {entry.nbytes}ul"
        return entry.load.format(f"{entry.buffer}({address}).d[0]")

    def load(self, width: int) -> list[str]:
        """Declarations of the words of ``width`` neighbours."""
        return wide_load(dataclasses.replace(self.access, text=self.at), width)

    def element(self, v: int) -> str:
        """GLSL of neighbour ``v`` of those."""
        return re.sub(r"\bv\b", str(v), unpacked(self.access))


@dataclasses.dataclass(frozen=True)
class Own:
    """A load of an epilogue that waits for no result: ``type`` and ``name`` of what holds it, GLSL of the ``load``."""

    type: str
    name: str
    load: str


class VulkanTemplateKernel(VulkanKernel):
    """One template with its epilogue."""

    def __init__(self, node: VulkanTemplateBuffer) -> None:
        self.node = node
        self.workgroups: Any = 1
        self.results: list[Result] = []
        self.marked: list[str] = []
        self.turns: dict[str, int] = {}
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

    def address(self, position: int) -> str:
        """GLSL of the address (uint64_t) of the first element of operand ``position``."""
        operand = self.inputs[position]
        var, nbytes = self.args.input(operand.get_name()), operand.get_dtype().itemsize
        return f"(uint64_t({var}) + uint64_t({self.size(operand.get_layout().offset)}) * {nbytes}ul)"

    def result(self, position: int) -> Callable[[str, str], str]:
        """A function from GLSL of an index and of a register to GLSL that stores this in operand ``position``, which is
        one of the node's ``also`` and begins where its buffer does."""
        operand = self.inputs[position]
        var = self.args.input(operand.get_name())
        self.written.add(var)
        entry = glsl_type(operand.get_dtype())
        address = f"uint64_t({var}) + uint64_t({{}}) * {entry.nbytes}ul"

        def store(index: str, value: str) -> str:
            place = f"{var}.d[{index}]"
            if self.index_dtype != "int":
                place = f"{entry.buffer}({address.format(index)}).d[0]"
            return f"{place} = {entry.store.format(value)};"

        return store

    def takes_turns(self, position: int, nbytes: int) -> None:
        """Has each launch take the next ``nbytes`` bytes of operand ``position``, a buffer, so that calls which have
        nothing else in common need not wait for each other."""
        self.turns[self.args.input(self.inputs[position].get_name())] = nbytes

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
            self.marked = marked
            body = scalar(marked, list(self.accesses.values()))
        return self.indexing_code.getvalue().splitlines(), body

    def _store_line(self, name: str, index: sympy.Expr, value: CSEVariable, mode: Any) -> str:
        line = super()._store_line(name, index, value, mode)
        if mode is None:
            dtype = V.graph.get_dtype(name)
            text = self.index_to_str(self.prepare_indexing(index))
            self.results.append(
                Result(line, text, as_dtype(value, dtype), self.args.output(name), dtype, begins_aligned(name))
            )
        return line

    def sole_result(self, indexing: list[str], body: list[str]) -> Result | None:
        """The one store of an epilogue, if it is its last line and goes to element ``xindex``.

        A template may then compute several results before it stores them with one wide store, and some that it does not
        store: nothing else of the epilogue is seen outside.
        """
        if self.atomic_add_found:
            return None
        accesses = list(self.accesses.values())
        lines = {scalar([result.line], accesses)[0]: result for result in self.results}
        stores = [line for line in body if line in lines]
        if len(stores) != 1 or body[-1] != stores[0]:
            return None
        result = lines[stores[0]]
        flat = result.index == "xindex" or f"const {self.index_dtype} {result.index} = xindex;" in indexing
        return result if flat else None

    def given(self, result: Result | None) -> tuple[list[Given], list[str]]:
        """The inputs that neighbours find side by side, each aligned for wide loads, of an epilogue with one store
        ``result``, and the body that has their values by name."""
        accesses = list(self.accesses.values())
        if result is None:
            return [], []
        found: dict[int, Given] = {}

        def name(match: re.Match[str]) -> str:
            access = accesses[int(match[1])]
            entry = self.range_tree_nodes.get(access.index)
            columns = self.node.get_size()[-1]
            column = entry is not None and entry.divisor == 1 and entry.length == columns
            fits = access.aligned and not access.store and access.dtype in (torch.float32, *HALVES)
            if not fits or not (access.text == result.index or column):
                return match[0]
            found[access.number] = Given(access, access.text != result.index)
            return found[access.number].name

        lines: list[str] = []
        for statement in statements(self.marked[:-1]):
            alone = len(statement) == 1 and not statement[0].startswith("if (")
            lines += [LOAD.sub(name, statement[0])] if alone else statement
        return list(found.values()), scalar(lines, accesses)

    def own_loads(self) -> tuple[list[Own], list[str]]:
        """Loads of the epilogue that wait for nothing but ``xindex``, and the body that finds them in variables: with
        them a template need not wait for memory once more when it has its result."""
        accesses = list(self.accesses.values())
        found: list[Own] = []
        lines: list[str] = []
        for statement in statements(self.marked):
            match = _DECLARED.fullmatch(statement[0]) if len(statement) == 1 else None
            if match is None or LOAD.search(match[4]) is None or _COMPUTED.search(match[4]):
                lines += statement
                continue
            own = Own(match[2], f"own_{match[3]}", scalar([match[4]], accesses)[0])
            found.append(own)
            lines.append(f"{match[1] or ''}{own.type} {match[3]} = {own.name};")
        return found, scalar(lines, accesses)

    def build(self, epilogue_nodes: Sequence[Any]) -> KernelText:
        """The finished kernel."""
        template, values, self.workgroups = self.node.plan(self)
        indexing, body = self.epilogue(epilogue_nodes)
        with V.set_kernel_handler(self):
            pointers, fields, nbytes = self.argument_fields()
        result = self.sole_result(indexing, body)
        given, finish = self.given(result)
        rounds = values.get("half_results", False)
        own, late = self.own_loads() if values.get("own_loads") else ([], body)
        context = {
            **values,
            "index": self.index_dtype,
            "pointers": pointers,
            "indexing": indexing,
            "body": body,
            "result": result,
            "given": given,
            "finish": finish,
            "own_loads": own,
            "late": late,
            "types": glsl_type,
            "half_results": rounds and half_results(self.device_info, self.accesses.values(), self.atomic_add_found),
            "half_powers": rounds and half_powers(self.device_info, self.accesses.values(), self.atomic_add_found),
        }
        layout = ArgumentLayout(tuple(fields))
        return assemble(
            template, layout, self.device_info, context, 1, sorted(self.written), nbytes, self.turns.items()
        )

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
