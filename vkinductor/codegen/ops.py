"""Inductor's pointwise operators as GLSL expressions.

One static method (or one row of a table) an operator. Operands arrive as CSE variables that know their torch
dtype, or as Python numbers; every method brings them to the register type of the promoted dtype first, since
GLSL converts almost nothing implicitly. Loads, stores, reductions and control flow are kernel.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable, OpOverrides
from torch._inductor.dtype_propagation import promote_types
from torch._inductor.utils import get_bounds_index_expr, upcast_compute_type
from torch._inductor.virtualized import OpsValue, V
from torch.utils._sympy.value_ranges import ValueRanges

from . import compat
from .index_values import fits_int32, integral, is_real, real, wide
from .types import convert, glsl_type, is_float, literal

Operand = Any  # CSEVariable | OpsValue | int | float | bool

# Inductor op -> library function for one floating-point argument. float64 uses the `_f64` twin.
UNARY_FLOAT = {
    "exp": "vk_exp",
    "exp2": "vk_exp2",
    "expm1": "vk_expm1",
    "log": "vk_log",
    "log2": "vk_log2",
    "log10": "vk_log10",
    "log1p": "vk_log1p",
    "sqrt": "vk_sqrt",
    "rsqrt": "vk_rsqrt",
    "sin": "vk_sin",
    "cos": "vk_cos",
    "tan": "vk_tan",
    "asin": "vk_asin",
    "acos": "vk_acos",
    "atan": "vk_atan",
    "sinh": "vk_sinh",
    "cosh": "vk_cosh",
    "tanh": "vk_tanh",
    "asinh": "vk_asinh",
    "acosh": "vk_acosh",
    "atanh": "vk_atanh",
    "sigmoid": "vk_sigmoid",
    "erf": "vk_erf",
    "erfc": "vk_erfc",
    "erfcx": "vk_erfcx",
    "erfinv": "vk_erfinv",
    "lgamma": "vk_lgamma",
    "digamma": "vk_digamma",
    "bessel_j0": "vk_bessel_j0",
    "bessel_j1": "vk_bessel_j1",
    "bessel_y0": "vk_bessel_y0",
    "bessel_y1": "vk_bessel_y1",
    "i0": "vk_i0",
    "i0e": "vk_i0e",
    "i1": "vk_i1",
    "i1e": "vk_i1e",
    "modified_bessel_i0": "vk_i0",
    "modified_bessel_i1": "vk_i1",
    "modified_bessel_k0": "vk_k0",
    "modified_bessel_k1": "vk_k1",
    "scaled_modified_bessel_k0": "vk_k0e",
    "scaled_modified_bessel_k1": "vk_k1e",
    "spherical_bessel_j0": "vk_spherical_bessel_j0",
    "airy_ai": "vk_airy_ai",
    "ndtr": "vk_ndtr",
    "ndtri": "vk_ndtri",
    "log_ndtr": "vk_log_ndtr",
}

BINARY_FLOAT = {
    "atan2": "vk_atan2",
    "hypot": "vk_hypot",
    "copysign": "vk_copysign",
    "nextafter": "vk_nextafter",
    "igamma": "vk_igamma",
    "igammac": "vk_igammac",
    "gammainc": "vk_igamma",
    "gammaincc": "vk_igammac",
    "zeta": "vk_zeta",
    "polygamma": "vk_polygamma",
    "chebyshev_polynomial_t": "vk_chebyshev_t",
    "chebyshev_polynomial_u": "vk_chebyshev_u",
    "chebyshev_polynomial_v": "vk_chebyshev_v",
    "chebyshev_polynomial_w": "vk_chebyshev_w",
    "shifted_chebyshev_polynomial_t": "vk_shifted_chebyshev_t",
    "shifted_chebyshev_polynomial_u": "vk_shifted_chebyshev_u",
    "shifted_chebyshev_polynomial_v": "vk_shifted_chebyshev_v",
    "shifted_chebyshev_polynomial_w": "vk_shifted_chebyshev_w",
    "hermite_polynomial_h": "vk_hermite_h",
    "hermite_polynomial_he": "vk_hermite_he",
    "laguerre_polynomial_l": "vk_laguerre_l",
    "legendre_polynomial_p": "vk_legendre_p",
}

# Rounding: integers pass through unchanged, floats go to the library.
ROUNDING = {"floor": "vk_floor", "ceil": "vk_ceil", "trunc": "vk_trunc", "round": "vk_round"}

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def use(function: str, dtype: torch.dtype | None = None) -> str:
    """The name of library function ``function`` for ``dtype``: float64 has a twin of its own."""
    return f"{function}_f64" if dtype == torch.float64 else function


def _unwrap(x: Operand) -> Operand:
    return x.value if isinstance(x, OpsValue) else x


def dtype_of(x: Operand) -> torch.dtype:
    """Register dtype of an operand; Python numbers have torch's default dtype of their kind."""
    x = _unwrap(x)
    if isinstance(x, CSEVariable):
        assert x.dtype is not None, f"{x} carries no dtype"
        return x.dtype
    if isinstance(x, bool):
        return torch.bool
    return torch.int64 if isinstance(x, int) else torch.float32


def as_dtype(x: Operand, dtype: torch.dtype) -> str:
    """GLSL text of ``x`` in the register type of ``dtype``."""
    x = _unwrap(x)
    if isinstance(x, (bool, int, float)):
        return literal(x, dtype)
    return convert(str(x), dtype_of(x), dtype)


def _wrapped(text: str, dtype: torch.dtype) -> str:
    wrap = glsl_type(dtype).wrap
    return f"{wrap}({text})" if wrap else text


def _promoted(*args: Operand) -> torch.dtype:
    return promote_types([_unwrap(a) for a in args])


def _promoted_float(*args: Operand) -> torch.dtype:
    dtype = _promoted(*args)
    return dtype if is_float(dtype) else torch.float32


def _arithmetic(symbol: str) -> Callable[..., str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        if dtype == torch.bool:
            # torch adds booleans as "or" and multiplies them as "and".
            logical = {"+": "||", "*": "&&", "-": "!="}[symbol]
            return f"({as_dtype(a, dtype)} {logical} {as_dtype(b, dtype)})"
        return _wrapped(f"({as_dtype(a, dtype)} {symbol} {as_dtype(b, dtype)})", dtype)

    return emit


def _comparison(symbol: str) -> Callable[..., str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        if dtype == torch.int64 and _fits_int32(a) and _fits_int32(b):
            # Cheaper everywhere, and Mesa 22.3's lavapipe compares a widened int32 with an int64 wrongly.
            dtype, a, b = torch.int32, _narrow(a), _narrow(b)
        if dtype == torch.bool and symbol not in ("==", "!="):
            return f"(int({as_dtype(a, dtype)}) {symbol} int({as_dtype(b, dtype)}))"
        return f"({as_dtype(a, dtype)} {symbol} {as_dtype(b, dtype)})"

    return emit


def _fits_int32(x: Operand) -> bool:
    x = _unwrap(x)
    if isinstance(x, int):
        return -(1 << 31) <= x < 1 << 31
    if not isinstance(x, CSEVariable):
        return False
    if x in V.kernel.narrow or _is_int32(x):
        return True
    return bool(x.bounds.lower >= -(1 << 31) and x.bounds.upper < 1 << 31)


def _is_int32(x: CSEVariable) -> bool:
    return x.dtype is not None and glsl_type(x.dtype).register == "int"


def _narrow(x: Operand) -> Operand:
    """The int32 that ``x`` was widened from, if it was."""
    x = _unwrap(x)
    return V.kernel.narrow.get(x, x) if isinstance(x, CSEVariable) else x


def _bitwise(symbol: str, logical: str) -> Callable[..., str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        operator = logical if dtype == torch.bool else symbol
        return f"({as_dtype(a, dtype)} {operator} {as_dtype(b, dtype)})"

    return emit


def _logical(symbol: str) -> Callable[..., str]:
    def emit(a: Operand, b: Operand) -> str:
        return f"({as_dtype(a, torch.bool)} {symbol} {as_dtype(b, torch.bool)})"

    return emit


def _unary_float(function: str) -> Callable[[Operand], str]:
    def emit(x: Operand) -> str:
        dtype = _promoted_float(x)
        return f"{use(function, dtype)}({as_dtype(x, dtype)})"

    return emit


def _binary_float(function: str) -> Callable[[Operand, Operand], str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = _promoted_float(a, b)
        return f"{use(function, dtype)}({as_dtype(a, dtype)}, {as_dtype(b, dtype)})"

    return emit


def _rounding(function: str) -> Callable[[Operand], str]:
    def emit(x: Operand) -> str:
        dtype = dtype_of(x)
        if not is_float(dtype):
            return as_dtype(x, dtype)
        return f"{use(function, dtype)}({as_dtype(x, dtype)})"

    return emit


def _extremum(name: str) -> Callable[[Operand, Operand], str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        if dtype == torch.bool:
            return f"({x} {'||' if name == 'max' else '&&'} {y})"
        if is_float(dtype):
            return f"{use(f'vk_{name}', dtype)}({x}, {y})"
        return f"{name}({x}, {y})"

    return emit


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
    dtype = _promoted_float(a, b)
    x, y = as_dtype(a, dtype), as_dtype(b, dtype)
    if _is_zero(_unwrap(b)):
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
        source = _unwrap(x)
        if dtype == torch.int64 and isinstance(source, CSEVariable) and _is_int32(source):
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
        return _wrapped(f"(-{as_dtype(x, dtype)})", dtype)

    @staticmethod
    def abs(x: Operand) -> str:
        dtype = dtype_of(x)
        if not dtype.is_signed:
            return as_dtype(x, dtype)
        return _wrapped(f"abs({as_dtype(x, dtype)})", dtype)

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
        dtype = _promoted_float(x)
        return f"({literal(1, dtype)} / {as_dtype(x, dtype)})"

    @staticmethod
    def floordiv(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        if is_float(dtype):
            return f"{use('vk_floor', dtype)}({_quotient('vk_div_rn', a, b)})"
        return _wrapped(f"{use('vk_floordiv')}({as_dtype(a, dtype)}, {as_dtype(b, dtype)})", dtype)

    @staticmethod
    def truncdiv(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        if is_float(dtype):
            return f"{use('vk_trunc', dtype)}({_quotient('', a, b)})"
        return _wrapped(f"{use('vk_truncdiv')}({as_dtype(a, dtype)}, {as_dtype(b, dtype)})", dtype)

    @staticmethod
    def mod(a: Operand, b: Operand) -> str:
        return GlslOverrides.fmod(a, b)

    @staticmethod
    def fmod(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        return f"{use('vk_fmod', dtype)}({as_dtype(a, dtype)}, {as_dtype(b, dtype)})"

    @staticmethod
    def remainder(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        return f"{use('vk_remainder', dtype)}({x}, {y})"

    @staticmethod
    def pow(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        if is_float(dtype):
            return f"{use('vk_pow', dtype)}({x}, {y})"
        return _wrapped(f"{use('vk_ipow')}({x}, {y})", dtype)

    @staticmethod
    def fma(a: Operand, b: Operand, c: Operand) -> str:
        dtype = _promoted(a, b, c)
        if not is_float(dtype):
            return _wrapped(f"({as_dtype(a, dtype)} * {as_dtype(b, dtype)} + {as_dtype(c, dtype)})", dtype)
        return f"fma({as_dtype(a, dtype)}, {as_dtype(b, dtype)}, {as_dtype(c, dtype)})"

    @staticmethod
    def mul_rn(a: Operand, b: Operand) -> str:
        return f"({as_dtype(a, (d := _promoted(a, b)))} * {as_dtype(b, d)})"

    @staticmethod
    def relu(x: Operand) -> str:
        return _extremum("max")(x, 0)

    @staticmethod
    def square(x: Operand) -> str:
        return _arithmetic("*")(x, x)

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
        dtype = _promoted_float(x)
        return f"{use('vk_ldexp', dtype)}({as_dtype(x, dtype)}, {as_dtype(n, torch.int32)})"

    @staticmethod
    def frexp(x: Operand) -> tuple[CSEVariable, CSEVariable]:
        dtype = _promoted_float(x)
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
        return _wrapped(f"(~{as_dtype(x, dtype)})", dtype)

    @staticmethod
    def bitwise_left_shift(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        width = 8 * dtype.itemsize
        shifted = f"{use('vk_shl')}({as_dtype(a, dtype)}, {as_dtype(b, torch.int32)}, {width})"
        return _wrapped(shifted, dtype)

    @staticmethod
    def bitwise_right_shift(a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
        width = 8 * dtype.itemsize
        return f"{use('vk_shr')}({as_dtype(a, dtype)}, {as_dtype(b, torch.int32)}, {width})"

    @staticmethod
    def where(condition: Operand, a: Operand, b: Operand) -> str:
        dtype = _promoted(a, b)
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
        return _wrapped(f"{asm}({', '.join(str(_unwrap(x)) for x in inputs)})", dtype)

    # --- indexing ------------------------------------------------------------------------------

    def indirect_indexing(self, var: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        return V.kernel.indirect_symbol(var)


def bits_of(text: str, dtype: torch.dtype) -> str:
    """GLSL integer expression holding the memory bits of register ``text``."""
    match dtype:
        case torch.float32:
            return f"floatBitsToInt({text})"
        case torch.float64:
            return f"int64_t(packInt2x32(ivec2(unpackDouble2x32({text}))))"
        case torch.float16:
            return f"int(vk_f32_to_f16_bits({text}))"
        case torch.bfloat16:
            return f"int(vk_f32_to_bf16_bits({text}))"
        case torch.bool:
            return f"({text} ? 1 : 0)"
    return text


def from_bits(bits: str, dtype: torch.dtype) -> str:
    """The register of ``dtype`` whose memory bits are the integer expression ``bits``."""
    match dtype:
        case torch.float32:
            return f"intBitsToFloat(int({bits}))"
        case torch.float64:
            return f"packDouble2x32(uvec2(unpackInt2x32(int64_t({bits}))))"
        case torch.float16:
            return f"vk_f16_bits_to_f32(uint({bits}) & 0xffffu)"
        case torch.bfloat16:
            return f"vk_bf16_to_f32(uint({bits}) & 0xffffu)"
        case torch.bool:
            return f"(({bits}) != 0)"
    entry = glsl_type(dtype)
    converted = f"{entry.register}({bits})"
    return f"{entry.wrap}({converted})" if entry.wrap else converted


def round_to_half(text: str, dtype: torch.dtype) -> str:
    """Round a float register to float16 or bfloat16 precision and keep it in a float register."""
    return f"vk_round_f16({text})" if dtype == torch.float16 else f"vk_round_bf16({text})"


def _install() -> None:
    for name, symbol in {"add": "+", "sub": "-", "mul": "*"}.items():
        setattr(GlslOverrides, name, staticmethod(_arithmetic(symbol)))
    for name, symbol in COMPARISONS.items():
        setattr(GlslOverrides, name, staticmethod(_comparison(symbol)))
    for names, symbol, logical in (
        (("bitwise_and", "and_"), "&", "&&"),
        (("bitwise_or", "or_"), "|", "||"),
        (("bitwise_xor", "xor"), "^", "!="),
    ):
        for name in names:
            setattr(GlslOverrides, name, staticmethod(_bitwise(symbol, logical)))
    GlslOverrides.lshift = GlslOverrides.bitwise_left_shift  # type: ignore[method-assign]
    GlslOverrides.rshift = GlslOverrides.bitwise_right_shift  # type: ignore[method-assign]
    for name, symbol in {"logical_and": "&&", "logical_or": "||", "logical_xor": "!="}.items():
        setattr(GlslOverrides, name, staticmethod(_logical(symbol)))
    for name, function in UNARY_FLOAT.items():
        setattr(GlslOverrides, name, staticmethod(_unary_float(function)))
    for name, function in BINARY_FLOAT.items():
        setattr(GlslOverrides, name, staticmethod(_binary_float(function)))
    for name, function in ROUNDING.items():
        setattr(GlslOverrides, name, staticmethod(_rounding(function)))
    for name, function in {"maximum": "max", "minimum": "min"}.items():
        setattr(GlslOverrides, name, staticmethod(_extremum(function)))


_install()
