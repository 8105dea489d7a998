"""One Inductor kernel as GLSL: loads, stores, masks, reductions and the sections they fall into.

Scalar code: an invocation computes one element (pointwise) or its share of a row (reduction). Inductor
decides what is fused and in which order; ops.py writes the expressions; sections.py moves values between
scopes; kernel_text.py fills in the skeleton (bounds, grid, lanes, loops), a Jinja template; kernel_arguments.py has the
arguments. Launching is launch.py's.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable, DeferredLine, IndentedBuffer
from torch._inductor.codegen.simd import IterationRangesEntry, SIMDKernel
from torch._inductor.utils import prefix_is_reduction, sympy_index_symbol, upcast_compute_type
from torch._inductor.virtualized import OpsValue, V
from torch.utils._sympy.value_ranges import ValueRanges

from vkinductor.runtime import context
from vkinductor.templates import render

from . import heuristics, index_errors, loop_limit, row_sorts, scans, search, tiles, vectorize
from .alignment import begins_aligned
from .compat import setting, size_hint
from .glsl_cse import GlslCSE, GlslVariable
from .kernel_arguments import KernelWithArguments
from .kernel_text import finished
from .operands import as_dtype
from .ops import GlslOverrides
from .pending import Part, PendingSection
from .printer import GlslPrinter
from .ranges import split_whole
from .reductions import ARG_REDUCTIONS, reduction
from .row_access import row_access
from .source import KernelText
from .two_passes import IN_TWO_PASSES
from .types import convert, glsl_type, literal


class VulkanKernel(KernelWithArguments):
    """Generates one pointwise or reduction kernel."""

    overrides = GlslOverrides

    def __init__(self, tiling: dict[str, sympy.Expr], **kwargs: Any) -> None:
        self.row_values: set[CSEVariable] = set()
        # Arguments that hold a floating-point number: name -> "f32" or "f64".
        self.real_arguments: dict[str, str] = {}
        # int64 values that are indices: the int32 each was widened from.
        self.narrow: dict[CSEVariable, CSEVariable] = {}
        super().__init__(tiling, **kwargs)
        self.cse = GlslCSE()
        self.set_index_dtype(self.features.select_index_dtype())
        self.device_info = context.get().info
        self.pending: list[PendingSection] = []
        self.loop_indexing = IndentedBuffer()
        self.accumulators = IndentedBuffer()
        self.combines = IndentedBuffer()
        self.row_stores = IndentedBuffer()
        self.step_begins = IndentedBuffer()
        self.step_ends = IndentedBuffer()
        self.scalar_arguments: dict[str, torch.dtype] = {}
        self.shared: dict[tuple[str, int], str] = {}
        self.accumulator_ids = itertools.count()
        self.scans: list[scans.Scan] = []
        self.parts: list[Part] = []
        self.row_sort: row_sorts.RowSort | None = None
        self.written: set[str] = set()
        self.index_checks: list[index_errors.Check] = []
        self.tile: tiles.Tile | None = None
        self.width = 1  # elements an invocation, of an elementwise kernel
        # Indices that come from what was loaded, and what those among them that are checked stay below.
        self.loaded_indices = 0
        self.checked_below: list[Any] = []
        self.accesses: dict[tuple[bool, str, torch.dtype, str], vectorize.Access] = {}
        self.scheduled: Any = ()  # the scheduler nodes of this launch
        # Sums over columns (mixed_reductions.py): (argument, array of the lane's elements).
        self.column_sums: list[tuple[str, str]] = []
        # Sums of what rows come to (row_sums.py): (argument, the row's value, its dtype).
        self.row_sums: list[tuple[str, str, torch.dtype]] = []
        self.reduces = self.features.is_reduction()
        if self.reduces:
            rows, row = self.features.numel, self.features.reduction_numel
            static = int(row) if isinstance(row, (int, sympy.Integer)) else None
            self.passes_within = loop_limit.passes_within(self.device_info, self.features.scheduler_nodes())
            hints = loop_limit.likely_row(self.device_info, row), size_hint(rows)
            if self.features.contains_op("sort"):
                assert static is not None  # row_sorts.lower
                self.layout = heuristics.row_sort(self.device_info, static, size_hint(rows))
            elif self.features.contains_op("scan"):
                self.layout = heuristics.scan(self.device_info, static, *hints)
            else:
                access = row_access(self.features.scheduler_nodes(), rows, row)
                together = getattr(self.features, "together", 1)
                access = dataclasses.replace(access, sums=getattr(self.features, "sums", 0), together=together)
                self.layout = heuristics.reduction(self.device_info, static, *hints, self.passes_within, access)
                self.layout = dataclasses.replace(self.layout, turns=getattr(self.features, "turns", 1))
        else:
            self.pointwise_layout = heuristics.pointwise(self.device_info)

    def set_index_dtype(self, dtype: torch.dtype) -> None:
        """Compute indices in ``dtype`` (int32 or int64)."""
        self.chosen_index_dtype = dtype
        self.kexpr = GlslPrinter(self.index_dtype).doprint

    # --- what SIMDKernel asks ------------------------------------------------------------------

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return glsl_type(dtype).register

    def get_index_dtype_as_torch_dtype(self) -> torch.dtype:
        return self.chosen_index_dtype

    @staticmethod
    def _split_iteration_ranges(groups: Any, lengths: Any) -> Any:
        groups = list(groups)
        whole = split_whole(groups, lengths)
        return SIMDKernel._split_iteration_ranges(groups, lengths) if whole is None else whole

    def should_use_persistent_reduction(self) -> bool:
        # Inductor's notion keeps a row in one block value; ours is decided by the layout. Saying no makes it
        # close a loop section wherever a reduction's result is needed, which both of our forms want.
        return False

    def create_cse_var(self, name: str, bounds: Any, dtype: Any = None, shape: Any = None) -> CSEVariable:
        var = GlslVariable(name, bounds, dtype, shape)
        if not self.inside_reduction:
            self.row_values.add(var)
        return var

    def visible(self, var: CSEVariable) -> bool:
        """Whether ``var`` can be read here: a once-a-row section has no element to pick a loop value's slot by."""
        return self.inside_reduction or not self.reduces or var in self.row_values

    def codegen_iteration_ranges_entry(self, entry: IterationRangesEntry) -> None:
        line = f"const {self.index_dtype} {entry.name} = {self.kexpr(self.rename_indexing(entry.expr))};"
        (self.loop_indexing if prefix_is_reduction(entry.prefix) else self.indexing_code).writeline(line)

    def real_argument(self, expr: sympy.Expr, dtype: torch.dtype) -> str:
        """GLSL of a floating-point ``expr`` of sizes and numbers, which the host computes at each call."""
        name = self.args._lookup("ks", self.args.sizevars, expr)
        if dtype == torch.float64 or name not in self.real_arguments:
            self.real_arguments[name] = "f64" if dtype == torch.float64 else "f32"
        return f"{glsl_type(dtype).register}(ARG.{name})"

    # --- memory --------------------------------------------------------------------------------

    def element(self, var: str, index: sympy.Expr, dtype: torch.dtype) -> str:
        """The GLSL lvalue of element ``index`` of buffer argument ``var``."""
        text = self.index_to_str(index)
        if self.index_dtype == "int":
            return f"{var}.d[{text}]"
        entry = glsl_type(dtype)
        return f"{entry.buffer}(uint64_t({var}) + uint64_t({text}) * {entry.nbytes}ul).d[0]"

    def load(self, name: str, index: sympy.Expr) -> CSEVariable:
        var = self.args.input(name)
        dtype = V.graph.get_dtype(name)
        if V.graph.is_unspec_arg(name):
            # A Python number that Dynamo turned into a zero-dimensional CPU tensor: passed by value.
            self.scalar_arguments[var] = dtype
            text = f"(ARG.{var} != 0)" if dtype == torch.bool else f"ARG.{var}"
            return self.cse.generate(self.loads, text, dtype=upcast_compute_type(dtype), shape=())
        self._note_checked(name, index)
        index = self.prepare_indexing(index)
        if index.is_Integer and index.is_negative:
            index = sympy.S.Zero  # behind a mask that is never true; GLSL refuses a constant that is out of range
        text = self._access(name, var, index, dtype, store=False)
        return self.cse.generate(self.loads, text, dtype=upcast_compute_type(dtype), shape=())

    def _access(self, name: str, var: str, index: sympy.Expr, dtype: torch.dtype, store: bool) -> str:
        """Element ``index`` of buffer ``name``, marked for vectorize.py."""
        text = self.index_to_str(index)
        key = (store, var, dtype, text)
        access = self.accesses.get(key)
        if access is None:
            number, aligned = len(self.accesses), all(map(begins_aligned, self._sharing(name)))
            access = self.accesses[key] = vectorize.Access(number, var, dtype, index, text, aligned, store)
        return access.mark(self.element(var, index, dtype))

    def _sharing(self, name: str) -> list[str]:
        """The buffers that begin where ``name`` does: those that are updated in place."""
        shared = self.args.inplace_buffers.get(name)
        return [name, *getattr(shared, "other_names", ())]

    def store(self, name: str, index: sympy.Expr, value: CSEVariable, mode: Any = None) -> None:
        line = self._store_line(name, index, value, mode)
        if self.reduces and not self.inside_reduction:
            line = f"if (lane == 0) {{ {line} }}"
        self.stores.writeline(DeferredLine(name, line))

    def store_reduction(self, name: str, index: sympy.Expr, value: CSEVariable) -> None:
        self.row_stores.writeline(DeferredLine(name, self._store_line(name, index, value, None)))

    def _store_line(self, name: str, index: sympy.Expr, value: CSEVariable, mode: Any) -> str:
        var = self.args.output(name)
        self.written.add(var)
        self._note_checked(name, index)
        index = self.prepare_indexing(index)
        dtype = V.graph.get_dtype(name)
        if mode is not None:
            return self._atomic(mode, var, index, dtype, value)
        return f"{self._access(name, var, index, dtype, store=True)} = {as_dtype(value, dtype)};"

    def _atomic(self, mode: str, var: str, index: sympy.Expr, dtype: torch.dtype, value: CSEVariable) -> str:
        text = as_dtype(value, upcast_compute_type(dtype))
        self.atomic_add_found = True
        return self.atomics.apply(mode, f"uint64_t({var})", self.index_to_str(index), dtype, text)

    def indirect_symbol(self, var: CSEVariable | str) -> sympy.Symbol:
        """A loaded value as an index: converted to the kernel's index type."""
        self.loaded_indices += 1
        dtype = var.dtype if isinstance(var, CSEVariable) and var.dtype is not None else torch.int64
        index_dtype = self.get_index_dtype_as_torch_dtype()
        value = str(var)
        if setting("check_bounds") and dtype == torch.int64 and index_dtype == torch.int32:
            value = f"clamp({value}, -2147483648l, 2147483647l)"  # narrowing must not bring it back into range
        text = convert(value, dtype, index_dtype)
        bounds = var.bounds if isinstance(var, CSEVariable) else ValueRanges.unknown()
        index = self.cse.generate(self.compute, f"({text})", bounds=bounds, dtype=index_dtype, shape=())
        return sympy_index_symbol(str(index))

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        # A wild index must not reach memory that has no bounds checks of its own: it is clamped.
        # An iteration variable can be the index, where Inductor sees through what was loaded: nothing to clamp.
        if not isinstance(expr, sympy.Symbol) or expr in self.range_tree_nodes or not (lower or upper):
            return
        self.checked_below.append(size)
        name, limit = self.index_to_str(expr), self.index_to_str(size)
        index = self.index_dtype
        if setting("check_bounds"):
            self.compute.writeline(index_errors.statement(len(self.index_checks), name, f"{index}({limit})"))
            self.index_checks.append(index_errors.Check(expr.name))
        self.compute.writeline(f"{name} = max(min({name}, {index}({limit}) - {index}(1)), {index}(0));")

    def _note_checked(self, buffer: str, index: sympy.Expr) -> None:
        """Note that ``index`` of ``buffer`` is made of indices that are checked."""
        if self.index_checks:
            names = {symbol.name for symbol in index.free_symbols}
            for check in self.index_checks:
                if check.symbol in names and buffer not in check.buffers:
                    check.buffers.append(buffer)

    def device_assert_async(self, cond: Any, msg: str) -> None:
        """Conditions that torch checks on the device (torch._assert_async) are not checked here: a shader has
        no way to stop the program, and Vulkan none to tell which condition it was."""

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> CSEVariable:
        """``mask ? body() : other``, where ``body`` (and its loads) runs only under the mask."""
        scoped = IndentedBuffer()
        # The next mask calls its values by the same names, by which they are also looked up here.
        outside, self.narrow = self.narrow, dict(self.narrow)
        with self.swap_buffers(scoped):
            self.cse.iter_buffer_ids = itertools.count()
            self.cse.name_prefix = f"{self.cse.name_prefix}_m"
            result = body()
            result = result.value if isinstance(result, OpsValue) else result
            if not isinstance(result, CSEVariable):
                dtype = torch.float32 if isinstance(result, float) else torch.int64
                result = self.cse.generate(scoped, literal(result, dtype), dtype=dtype, shape=())
        self.narrow = outside
        assert result.dtype is not None
        kind: torch.dtype = result.dtype
        otherwise = as_dtype(other, kind)
        key = f"masked {mask} {scoped.getvalue()} {result} {otherwise}"
        var = self.cse.try_get(key)
        if var is None or not self.visible(var):
            var = self.cse.newvar(dtype=kind, shape=())
            self.cse.put(key, var)
            self.compute.writeline(f"{glsl_type(kind).register} {var};")
            self.compute.writeline(f"if ({as_dtype(mask, torch.bool)}) {{")
            with self.compute.indent():
                self.compute.splice(scoped)
                self.compute.writeline(f"{var} = {result};")
            self.compute.writeline(f"}} else {{ {var} = {otherwise}; }}")
        return var

    # --- reductions ----------------------------------------------------------------------------

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: Any, value: Any) -> Any:
        """Fold ``value`` over the row; the result(s) are row values, readable after this section."""
        assert self.inside_reduction
        key = (src_dtype, reduction_type, value)
        if key in self.cse.reduction_cache:
            return self.cse.reduction_cache[key]
        dtype, source = upcast_compute_type(dtype), upcast_compute_type(src_dtype)
        index_dtype = self.get_index_dtype_as_torch_dtype()
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        # A loop over the row runs an unknown number of times.
        serial = self.layout.elements or sys.maxsize
        if self.layout.elements and len(values) == 1 and reduction_type in IN_TWO_PASSES:
            results: Any = IN_TWO_PASSES[reduction_type](self, source, values[0])
            self.cse.reduction_cache[key] = results
            return results
        rule = reduction(str(reduction_type), dtype, source, index_dtype, serial, self.layout.step)
        texts = [as_dtype(v, rule.dtypes[min(i, len(rule.dtypes) - 1)]) for i, v in enumerate(values)]
        if reduction_type in ARG_REDUCTIONS and len(texts) == 1:
            texts.append(f"{self.index_dtype}(r0_index)")
        names = self.accumulate(rule, texts)
        picked = ARG_REDUCTIONS[reduction_type][1] if reduction_type in ARG_REDUCTIONS else tuple(range(len(names)))
        results = tuple(self.row_value(names[i], rule.dtypes[i]) for i in picked)
        result = results[0] if len(results) == 1 else results
        self.cse.reduction_cache[key] = result
        return result

    def partial_accumulate(self, name: str, reduction_type: str, value: Any, extra_meta: Any) -> None:
        """Add ``value`` to the sum of its column over the rows that this invocation takes (mixed_reductions.py), or, if
        it is one of a row, to that of neighbouring rows (row_sums.py)."""
        if not self.inside_reduction:
            dtype = V.graph.get_dtype(name)
            var, total = self.args.output(name), f"row_value{len(self.row_sums)}"
            self.written.add(var)
            self.store_buffer_names.add(name)
            self.row_sums.append((var, total, dtype))
            self.compute.writeline(f"{total} = {as_dtype(value, dtype)};")
            return
        var, total = self.args.output(name), f"column{len(self.column_sums)}"
        self.written.add(var)
        self.column_sums.append((var, total))
        self.compute.writeline(f"{total}[k] = {total}[k] + {as_dtype(value, torch.float32)};")

    def accumulate(self, rule: Any, values: list[str]) -> list[str]:
        names = [f"acc{next(self.accumulator_ids)}" for _ in rule.dtypes]
        registers = [glsl_type(d).register for d in rule.dtypes]
        for name, register, identity in zip(names, registers, rule.identities, strict=True):
            self.accumulators.writeline(f"{register} {name} = {identity};")
        for line in rule.update(names, values):
            self.compute.writeline(line)
        if rule.begin_step is not None:
            self.step_begins.writelines(rule.begin_step(names))
            self.step_ends.writelines(rule.end_step(names))
        if rule.finish is not None:
            for line in rule.finish(names):
                self.combines.writeline(line)
        names = names[: len(names) - rule.private]
        if self.layout.lanes > 1:
            counts: dict[str, int] = {}
            slots = []
            for name, register in zip(names, registers, strict=False):
                count = counts[register] = counts.get(register, 0) + 1
                slots.append((self.shared_array(register, count), name, register))
            other = [f"other{i}" for i in range(len(names))]
            text = render(
                "fold.glsl.jinja",
                layout=self.layout,
                subgroup=heuristics.fold_subgroup(self.device_info, self.layout, registers),
                slots=slots,
                other=other,
                combine=rule.combine(names, other),
            )
            for line in text.splitlines():
                if line.strip():
                    self.combines.writeline(line)
        return names

    def shared_array(self, register: str, count: int) -> str:
        # bool has no defined layout in shared memory on every driver: keep it in an int.
        return self.shared.setdefault((register, count), f"shared_{register}_{count}")

    def row_value(self, name: str, dtype: torch.dtype) -> CSEVariable:
        var = self.cse.newvar(dtype=dtype, shape=())
        self.row_values.add(var)
        self.combines.writeline(f"{glsl_type(dtype).register} {var} = {name};")
        return var

    # --- scans ---------------------------------------------------------------------------------

    def scan(self, dtypes: Any, combine_fn: Any, values: Any) -> tuple[Any, ...]:
        """Inclusive scan of ``values`` over the row; the results are readable at once."""
        assert self.inside_reduction
        return scans.scan(self, dtypes, combine_fn, values)

    def close_part(self, scan: str) -> None:
        """End the part of the loop before ``scan``: what follows is computed when the whole chunk is scanned."""
        self.parts.append(Part([self.loads, self.compute, self.stores], scan))
        self.loads, self.compute, self.stores = (IndentedBuffer() for _ in range(3))

    # --- sorts ---------------------------------------------------------------------------------

    def sort(self, dtypes: Any, values: Any, stable: bool, descending: bool) -> tuple[Any, ...]:
        """Sort ``values[0]`` over the row; ``values[1]`` are the positions in it (row_sorts.py)."""
        assert self.inside_reduction
        assert len(values) == 2
        return row_sorts.sort(self, dtypes[0], values[0], descending)

    def cut_row(self, lines: list[str]) -> None:
        """End the loop over the row; another goes on with the same elements after ``lines``, which all lanes run."""
        indexing = self.loop_indexing
        self.combines.writelines(lines)
        self._close_section(loop=True)
        self.loop_indexing = indexing

    def bucketize(
        self,
        values: Any,
        boundaries: Any,
        first: Any,
        dtype: Any,
        right: bool,
        sorter: Any = None,
        sorter_first: Any = None,
    ) -> CSEVariable:
        """Binary search (see search.py)."""
        return search.bucketize(self, values, boundaries, first, dtype, right, sorter, sorter_first)

    # --- assembling ----------------------------------------------------------------------------

    def codegen_body(self) -> None:
        """Close the current section."""
        looping = self.reduces and self.inside_reduction
        self._close_section(looping)
        if not looping:
            return
        if not self.layout.elements:
            # The next loop loads again: only what is the same for the whole row survives.
            self.cse.invalidate(self.row_values)  # type: ignore[arg-type]
        for tree in self.range_trees:
            if prefix_is_reduction(tree.prefix):
                tree.cache_clear()

    def _close_section(self, loop: bool) -> None:
        section = PendingSection(
            loop=loop,
            before=self.accumulators,
            body=[self.loop_indexing, self.loads, self.compute, self.stores],
            after=self.combines,
            row=self.row_stores,
            parts=self.parts,
            begin=self.step_begins,
            end=self.step_ends,
        )
        if section.any():
            self.pending.append(section)
            self.parts = []
            self.loop_indexing, self.loads, self.compute, self.stores = (IndentedBuffer() for _ in range(4))
            self.accumulators, self.combines, self.row_stores = (IndentedBuffer() for _ in range(3))
            self.step_begins, self.step_ends = IndentedBuffer(), IndentedBuffer()

    @property
    def atomics(self) -> Any:
        """Emitter of atomics for this device."""
        from .atomics import Atomics

        return Atomics(self.device_info.features)

    def codegen_kernel(self, name: str | None = None) -> str:
        """The finished kernel as the expression that defines it in the wrapper."""
        return self.text().python()

    def text(self) -> KernelText:
        """The finished kernel: GLSL and what launching it takes."""
        self.codegen_body()
        return finished(self)
