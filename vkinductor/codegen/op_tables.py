"""Operators that differ in a symbol or a library function alone: one row of a table each.

``BY_TABLE`` is what they come to: Inductor's name of an operator -> the function that writes it in GLSL. Operators with
a method of their own are ops.py's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .operands import (
    Operand,
    as_dtype,
    dtype_of,
    fits_int32,
    narrowed,
    promoted,
    promoted_float,
    use,
    wrapped,
)
from .types import is_float

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


def _arithmetic(symbol: str) -> Callable[..., str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        if dtype == torch.bool:
            # torch adds booleans as "or" and multiplies them as "and".
            logical = {"+": "||", "*": "&&", "-": "!="}[symbol]
            return f"({as_dtype(a, dtype)} {logical} {as_dtype(b, dtype)})"
        return wrapped(f"({as_dtype(a, dtype)} {symbol} {as_dtype(b, dtype)})", dtype)

    return emit


def _comparison(symbol: str) -> Callable[..., str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        if dtype == torch.int64 and fits_int32(a) and fits_int32(b):
            # Cheaper everywhere, and Mesa 22.3's lavapipe compares a widened int32 with an int64 wrongly.
            dtype, a, b = torch.int32, narrowed(a), narrowed(b)
        if dtype == torch.bool and symbol not in ("==", "!="):
            return f"(int({as_dtype(a, dtype)}) {symbol} int({as_dtype(b, dtype)}))"
        return f"({as_dtype(a, dtype)} {symbol} {as_dtype(b, dtype)})"

    return emit


def _bitwise(symbol: str, logical: str) -> Callable[..., str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = promoted(a, b)
        operator = logical if dtype == torch.bool else symbol
        return f"({as_dtype(a, dtype)} {operator} {as_dtype(b, dtype)})"

    return emit


def _logical(symbol: str) -> Callable[..., str]:
    def emit(a: Operand, b: Operand) -> str:
        return f"({as_dtype(a, torch.bool)} {symbol} {as_dtype(b, torch.bool)})"

    return emit


def _unary_float(function: str) -> Callable[[Operand], str]:
    def emit(x: Operand) -> str:
        dtype = promoted_float(x)
        return f"{use(function, dtype)}({as_dtype(x, dtype)})"

    return emit


def _binary_float(function: str) -> Callable[[Operand, Operand], str]:
    def emit(a: Operand, b: Operand) -> str:
        dtype = promoted_float(a, b)
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
        dtype = promoted(a, b)
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        if dtype == torch.bool:
            return f"({x} {'||' if name == 'max' else '&&'} {y})"
        if is_float(dtype):
            return f"{use(f'vk_{name}', dtype)}({x}, {y})"
        return f"{name}({x}, {y})"

    return emit


_BITWISE = {
    "bitwise_and": ("&", "&&"),
    "bitwise_or": ("|", "||"),
    "bitwise_xor": ("^", "!="),
    "and_": ("&", "&&"),
    "or_": ("|", "||"),
    "xor": ("^", "!="),
}

BY_TABLE: dict[str, Callable[..., str]] = {
    **{name: _arithmetic(symbol) for name, symbol in {"add": "+", "sub": "-", "mul": "*"}.items()},
    **{name: _comparison(symbol) for name, symbol in COMPARISONS.items()},
    **{name: _bitwise(*symbols) for name, symbols in _BITWISE.items()},
    **{name: _logical(s) for name, s in {"logical_and": "&&", "logical_or": "||", "logical_xor": "!="}.items()},
    **{name: _unary_float(function) for name, function in UNARY_FLOAT.items()},
    **{name: _binary_float(function) for name, function in BINARY_FLOAT.items()},
    **{name: _rounding(function) for name, function in ROUNDING.items()},
    **{name: _extremum(function) for name, function in {"maximum": "max", "minimum": "min"}.items()},
}
