"""What a generated kernel takes: the fields of its argument block, and the launch that fills them in.

Code that uses them is kernel.py's; dispatching is launch.py's.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor.codegen.simd import SIMDKernel
from torch._inductor.utils import prefix_is_reduction
from torch._inductor.virtualized import V

from . import index_errors, tiles
from .types import glsl_type


class KernelWithArguments(SIMDKernel):
    """The arguments of a kernel under construction, as far as its code has asked for them."""

    index_dtype: str
    scalar_arguments: dict[str, torch.dtype]
    real_arguments: dict[str, str]
    index_checks: list[index_errors.Check]
    written: set[str]
    reduces: bool
    tile: tiles.Tile | None
    scheduled: Any

    def numel_text(self, prefix: str, numel: sympy.Expr) -> str:
        if isinstance(numel, (int, sympy.Integer)):
            return f"{self.index_dtype}({int(numel)}{'l' if self.index_dtype == 'int64_t' else ''})"
        return f"ARG.{prefix}numel"

    def argument_fields(self) -> tuple[list[str], list[tuple[str, str]], list[int | None]]:
        """Declarations of the buffer pointers, the argument fields in call order, and the bytes behind each."""
        pointers: list[str] = []
        nbytes: list[int | None] = []
        fields: list[tuple[str, str]] = []
        argdefs, call_args, _, _ = self.args.python_argdefs()
        for definition, call_arg in zip(argdefs, call_args, strict=True):
            inner = definition.name
            if inner in self.scalar_arguments:
                fields.append((inner, scalar_kind(self.scalar_arguments[inner])))
            elif isinstance(call_arg, str):
                entry = glsl_type(V.graph.get_dtype(call_arg))
                nbytes += [None] * (len(fields) - len(nbytes)) + [_static_nbytes(call_arg)]
                fields.append((inner, "ptr"))
                pointers.append(f"{entry.buffer} {inner} = {entry.buffer}(ARG.{inner});")
            else:
                # A size used as a value may exceed what indices need: it travels at full width.
                fields.append((inner, self.real_arguments.get(inner, "i64")))
                if inner not in self.real_arguments:
                    pointers.append(f"const {self.index_dtype} {inner} = {self.index_dtype}(ARG.{inner});")
        for tree in self.passed_numels():
            fields.append((f"{tree.prefix}numel", self._integer_kind()))
        nbytes += [None] * (len(fields) - len(nbytes))
        if self.index_checks:
            fields += [("index_errors", "ptr"), ("launch", "u32")]
            nbytes += [4 * index_errors.WORDS, None]
            pointers.append("Buffer_uint index_errors = Buffer_uint(ARG.index_errors);")
            self.written.add("index_errors")
        return pointers, fields, nbytes + [None] * (len(fields) - len(nbytes))

    def _integer_kind(self) -> str:
        return "i32" if self.index_dtype == "int" else "i64"

    def passed_numels(self) -> list[Any]:
        """Range trees whose length varies and so travels as an argument."""
        return [
            tree
            for tree in self.range_trees
            if not isinstance(tree.numel, (int, sympy.Integer))
            and (not prefix_is_reduction(tree.prefix) or self.reduces)
        ]

    def launch_arguments(self, name: str) -> list[str]:
        """Wrapper expressions for the fields of ``argument_fields``, in the same order."""
        wrapper: Any = V.graph.wrapper_code
        for symbol in self.args.sizevars:
            if isinstance(symbol, sympy.Symbol):
                wrapper.ensure_size_computed(symbol)
        _, call_args, _, _ = self.args.python_argdefs()
        args = [a if isinstance(a, str) else wrapper.codegen_python_sizevar(a) for a in call_args]
        args += [wrapper.codegen_python_sizevar(tree.numel) for tree in self.passed_numels()]
        if self.index_checks:
            args += ["index_errors", str(wrapper.checked_launch(name, [c.buffers for c in self.index_checks]))]
        return args

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        """Write the launch into the wrapper."""
        wrapper: Any = V.graph.wrapper_code
        items = [tree.numel for tree in self.range_trees if tree.prefix == "x"]
        text = wrapper.codegen_python_sizevar(items[0]) if items else "1"
        text = text if self.tile is None else str(self.tile.count)
        wrapper.write_kernel_call(name, self.launch_arguments(name), text)
        self.check_results(name)

    def check_results(self, name: str) -> None:
        """Let the program compare what a launch has computed, if it is to."""
        check: Any = getattr(V.graph.wrapper_code, "check_kernel", None)
        if check is not None:
            check(name, self.scheduled, self.args.live_output_buffers())


def scalar_kind(dtype: torch.dtype) -> str:
    """Argument-block kind of a scalar passed by value."""
    return {"float": "f32", "double": "f64", "int": "i32", "uint": "u32", "int64_t": "i64", "uint64_t": "u64"}.get(
        glsl_type(dtype).register, "i32"
    )


def _static_nbytes(name: str) -> int | None:
    """Bytes behind buffer ``name`` when its size does not vary."""
    buffer = V.graph.try_get_buffer(name)
    if buffer is None or not buffer.has_tensor_output():
        return None
    size = V.graph.sizevars.simplify(buffer.get_layout().storage_size())
    return int(size) * buffer.get_dtype().itemsize if isinstance(size, (int, sympy.Integer)) else None
