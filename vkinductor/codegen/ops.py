"""Inductor's pointwise operators as GLSL expressions.

One static method an operator, or a row of a table (op_tables.py). Operands arrive as CSE variables that know their
torch dtype, or as Python numbers; every method brings them to the register type of the promoted dtype first, since
GLSL converts almost nothing implicitly. Loads, stores, reductions and control flow are kernel.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable, OpOverrides
from torch._inductor.utils import get_bounds_index_expr, upcast_compute_type
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges

from . import compat, gelu
from .index_values import fits_int32, integral, is_real, real, wide
from .op_tables import BY_TABLE
from .operands import (
    Operand,
    as_dtype,
    bits_of,
    dtype_of,
    from_bits,
    is_int32,
    promoted,
    promoted_float,
    round_to_half,
    unwrap,
    use,
    wrapped,
)
from .types import convert, is_float, literal


def _index(expr: sympy.Expr) -> CSEVariable:
    """``expr`` in the kernel's index type."""
    kernel = V.kernel
    expr = integral(expr)
    text = kernel.index_to_str(kernel.prepare_indexing(expr))
    dtype = kernel.get_index_dtype_as_torch_dtype()
    return kernel.cse.generate(kernel.compute, text, bounds=get_bounds_index_expr(expr), dtype=dtype, shape=())


def _is_zero(x: Operand) -> bool:
    """Whether ``x`` is a constant 0."""
    return x.bounds.lower == x.bounds.upper == 0 if isinstance(x, CSEVariable) else x == 0


def _quotient(function: str, a: Operand, b: Operand) -> str:
    """a / b: through library function ``function`` (if any) in float32, whose own division is loose on a GPU."""
    dtype = promoted_float(a, b)
    x, y = as_dtype(a, dtype), as_dtype(b, dtype)
    if _is_zero(unwrap(b)):
        # lavapipe (22.3.6) leaves the result of a division by a literal zero undefined.
        return f"({x} * {use('vk_copysign', dtype)}({literal(math.inf, dtype)}, {y}))"
    return f"({x} / {y})" if dtype == torch.float64 or not function else f"{function}({x}, {y})"


class GlslOverrides(OpOverrides):
    """Inductor's ops handler for Vulkan kernels: each method returns GLSL text (or CSE variables)."""

    # --- constants and conversions -------------------------------------------------------------

    @staticmethod
    def constant(value: bool | float | int, dtype: torch.dtype) -> Any:
        dtype = upcast_compute_type(dtype)
        text = literal(value, dtype)
        if value == 0 and is_float(dtype):
            # Inductor tells no bounds of constants; a division must know a zero.
            return V.kernel.cse.generate(V.kernel.compute, text, bounds=ValueRanges.wrap(0), dtype=dtype, shape=())
        return text

    @staticmethod
    def to_dtype(
        x: Operand,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> str | CSEVariable:
        text = as_dtype(x, dtype)
        if dtype in (torch.float16, torch.bfloat16) and not use_compute_types:
            return round_to_half(text, dtype)
        source = unwrap(x)
        if dtype == torch.int64 and isinstance(source, CSEVariable) and is_int32(source):
            value = V.kernel.cse.generate(V.kernel.compute, text, dtype=dtype, shape=())
            V.kernel.narrow[value] = source
            return value
        return text

    @staticmethod
    def to_dtype_bitcast(x: Operand, dtype: torch.dtype, src_dtype: torch.dtype) -> str:
        if dtype.itemsize != src_dtype.itemsize:
            raise NotImplementedError(f"a bitcast from {src_dtype} to {dtype} changes the number of elements")
        return from_bits(bits_of(as_dtype(x, upcast_compute_type(src_dtype)), src_dtype), dtype)

    @staticmethod
    def index_expr(expr: sympy.Expr, dtype: torch.dtype) -> CSEVariable:
        # Newer torch says value_expr where the result is more than an index; older torch does not tell.
        if compat.HAS_VALUE_EXPR and not is_real(expr, dtype):
            return _index(expr)
        return GlslOverrides.value_expr(expr, dtype)

    @staticmethod
    def value_expr(expr: sympy.Expr, dtype: torch.dtype) -> CSEVariable:
        kernel, dtype = V.kernel, upcast_compute_type(dtype)
        index: CSEVariable | None = None
        if is_real(expr, dtype):
            text = real(kernel, expr, dtype)
        else:
            prepared = kernel.prepare_indexing(expr)
            wide_index = kernel.get_index_dtype_as_torch_dtype() == torch.int64
            if wide_index or fits_int32(kernel, prepared):
                index = _index(expr)
                text = as_dtype(index, dtype)
            else:
                text = convert(wide(kernel, prepared), torch.int64, dtype)
        if index is not None and index.dtype == dtype:
            return index
        bounds = get_bounds_index_expr(expr)
        value = kernel.cse.generate(kernel.compute, text, bounds=bounds, dtype=dtype, shape=())
        if index is not None and index.dtype == torch.int32 and dtype == torch.int64:
            kernel.narrow[value] = index
        return value

    # --- arithmetic ----------------------------------------------------------------------------

    @staticmethod
    def neg(x: Operand) -> str:
        dtype = dtype_of(x)
        return wrapped(f"(-{as_dtype(x, dtype)})", dtype)

    @staticmethod
    def abs(x: Operand) -> str:
        dtype = dtype_of(x)
        if not dtype.is_signed:
            return as_dtype(x, dtype)
        return wrapped(f"abs({as_dtype(x, dtype)})", dtype)

    @staticmethod
    def truediv(a: Operand, b: Operand) -> str:
        return _quotient("vk_div", a, b)

    @staticmethod
    def int_truediv(a: Operand, b: Operand) -> str:
        return GlslOverrides.truediv(a, b)

    @staticmethod
    def div_rn(a: Operand, b: Operand) -> str:
        return _quotient("vk_div_rn", a, b)

    @staticmethod
    def reciprocal(x: Operand) -> str:
        dtype = promoted_float(x)
        return f"({literal(1, dtype)} / {as_dtype(x, dtype)})"

    @staticmethod
    def floordiv(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        if is_float(dtype):
            return f"{use('vk_floor', dtype)}({_quotient('vk_div_rn', a, b)})"
        return wrapped(f"{use('vk_floordiv')}({as_dtype(a, dtype)}, {as_dtype(b, dtype)})", dtype)

    @staticmethod
    def truncdiv(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        if is_float(dtype):
            return f"{use('vk_trunc', dtype)}({_quotient('', a, b)})"
        return wrapped(f"{use('vk_truncdiv')}({as_dtype(a, dtype)}, {as_dtype(b, dtype)})", dtype)

    @staticmethod
    def mod(a: Operand, b: Operand) -> str:
        return GlslOverrides.fmod(a, b)

    @staticmethod
    def fmod(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        return f"{use('vk_fmod', dtype)}({as_dtype(a, dtype)}, {as_dtype(b, dtype)})"

    @staticmethod
    def remainder(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        return f"{use('vk_remainder', dtype)}({x}, {y})"

    @staticmethod
    def pow(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        if is_float(dtype):
            return f"{use('vk_pow', dtype)}({x}, {y})"
        return wrapped(f"{use('vk_ipow')}({x}, {y})", dtype)

    @staticmethod
    def fma(a: Operand, b: Operand, c: Operand) -> str:
        dtype = promoted(a, b, c)
        if not is_float(dtype):
            return wrapped(f"({as_dtype(a, dtype)} * {as_dtype(b, dtype)} + {as_dtype(c, dtype)})", dtype)
        return f"fma({as_dtype(a, dtype)}, {as_dtype(b, dtype)}, {as_dtype(c, dtype)})"

    @staticmethod
    def mul(a: Operand, b: Operand) -> str:
        x = gelu.argument(a, b)
        return BY_TABLE["mul"](a, b) if x is None else f"vk_gelu({x})"

    @staticmethod
    def mul_rn(a: Operand, b: Operand) -> str:
        return f"({as_dtype(a, (d := promoted(a, b)))} * {as_dtype(b, d)})"

    @staticmethod
    def relu(x: Operand) -> str:
        return BY_TABLE["maximum"](x, 0)

    @staticmethod
    def square(x: Operand) -> str:
        return BY_TABLE["mul"](x, x)

    @staticmethod
    def sign(x: Operand) -> str:
        dtype = dtype_of(x)
        if dtype == torch.bool or not dtype.is_signed:
            return as_dtype(x, dtype) if dtype == torch.bool else f"min({as_dtype(x, dtype)}, {literal(1, dtype)})"
        if is_float(dtype):
            return f"{use('vk_sign', dtype)}({as_dtype(x, dtype)})"
        return f"sign({as_dtype(x, dtype)})"

    @staticmethod
    def signbit(x: Operand) -> str:
        dtype = dtype_of(x)
        if is_float(dtype):
            return f"{use('vk_signbit', dtype)}({as_dtype(x, dtype)})"
        return f"({as_dtype(x, dtype)} < {literal(0, dtype)})" if dtype.is_signed else "false"

    @staticmethod
    def isnan(x: Operand) -> str:
        dtype = dtype_of(x)
        return f"{use('vk_isnan', dtype)}({as_dtype(x, dtype)})" if is_float(dtype) else "false"

    @staticmethod
    def isinf(x: Operand) -> str:
        dtype = dtype_of(x)
        return f"{use('vk_isinf', dtype)}({as_dtype(x, dtype)})" if is_float(dtype) else "false"

    @staticmethod
    def ldexp(x: Operand, n: Operand) -> str:
        dtype = promoted_float(x)
        return f"{use('vk_ldexp', dtype)}({as_dtype(x, dtype)}, {as_dtype(n, torch.int32)})"

    @staticmethod
    def frexp(x: Operand) -> tuple[CSEVariable, CSEVariable]:
        dtype = promoted_float(x)
        text, cse = as_dtype(x, dtype), V.kernel.cse
        mantissa = f"{use('vk_frexp_mantissa', dtype)}({text})"
        exponent = f"{use('vk_frexp_exponent', dtype)}({text})"
        return (
            cse.generate(V.kernel.compute, mantissa, dtype=dtype, shape=()),
            cse.generate(V.kernel.compute, exponent, dtype=torch.int32, shape=()),
        )

    # --- logic ---------------------------------------------------------------------------------

    @staticmethod
    def logical_not(x: Operand) -> str:
        return f"(!{as_dtype(x, torch.bool)})"

    @staticmethod
    def bitwise_not(x: Operand) -> str:
        dtype = dtype_of(x)
        if dtype == torch.bool:
            return f"(!{as_dtype(x, dtype)})"
        return wrapped(f"(~{as_dtype(x, dtype)})", dtype)

    @staticmethod
    def bitwise_left_shift(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        width = 8 * dtype.itemsize
        shifted = f"{use('vk_shl')}({as_dtype(a, dtype)}, {as_dtype(b, torch.int32)}, {width})"
        return wrapped(shifted, dtype)

    @staticmethod
    def bitwise_right_shift(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        width = 8 * dtype.itemsize
        return f"{use('vk_shr')}({as_dtype(a, dtype)}, {as_dtype(b, torch.int32)}, {width})"

    @staticmethod
    def where(condition: Operand, a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        return f"({as_dtype(condition, torch.bool)} ? {as_dtype(a, dtype)} : {as_dtype(b, dtype)})"

    @staticmethod
    def masked(mask: Operand, body: Callable[[], Any], other: Operand) -> CSEVariable:
        return V.kernel.masked(mask, body, other)

    # --- random numbers ------------------------------------------------------------------------

    @staticmethod
    def load_seed(name: str, offset: Any) -> Any:
        return V.kernel.load(name, sympy.Integer(offset))

    @staticmethod
    def rand(seed: Operand, offset: Operand) -> str:
        return f"{use('vk_rand')}({as_dtype(seed, torch.int64)}, {as_dtype(offset, torch.int64)})"

    @staticmethod
    def randn(seed: Operand, offset: Operand) -> str:
        return f"{use('vk_randn')}({as_dtype(seed, torch.int64)}, {as_dtype(offset, torch.int64)})"

    @staticmethod
    def randint64(seed: Operand, offset: Operand, low: Operand, high: Operand) -> str:
        args = ", ".join(as_dtype(a, torch.int64) for a in (seed, offset, low, high))
        return f"{use('vk_randint64')}({args})"

    # --- functions of the library that Inductor has no operator for --------------------------------

    @staticmethod
    def inline_asm_elementwise(*inputs: Operand, asm: str, dtype: torch.dtype = torch.float32, **rest: Any) -> str:
        """Library function ``asm`` of these registers; its result has ``dtype``."""
        return wrapped(f"{asm}({', '.join(str(unwrap(x)) for x in inputs)})", dtype)

    # --- indexing ------------------------------------------------------------------------------

    def indirect_indexing(self, var: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        return V.kernel.indirect_symbol(var)


for _name, _emit in BY_TABLE.items():
    if _name not in vars(GlslOverrides):
        setattr(GlslOverrides, _name, staticmethod(_emit))
GlslOverrides.lshift = GlslOverrides.bitwise_left_shift  # type: ignore[method-assign]
GlslOverrides.rshift = GlslOverrides.bitwise_right_shift  # type: ignore[method-assign]
