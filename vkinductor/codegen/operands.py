"""Operands of Inductor's pointwise operators as GLSL: their dtypes, promotion, conversion and memory bits.

Operands are CSE variables that know their torch dtype, or Python numbers. What operators make of them is ops.py's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.dtype_propagation import promote_types
from torch._inductor.virtualized import OpsValue, V

from .types import convert, glsl_type, is_float, literal

Operand = Any  # CSEVariable | OpsValue | int | float | bool


def use(function: str, dtype: torch.dtype | None = None) -> str:
    """The name of library function ``function`` for ``dtype``: float64 has a twin of its own."""
    return f"{function}_f64" if dtype == torch.float64 else function


def unwrap(x: Operand) -> Operand:
    return x.value if isinstance(x, OpsValue) else x


def dtype_of(x: Operand) -> torch.dtype:
    """Register dtype of an operand; Python numbers have torch's default dtype of their kind."""
    x = unwrap(x)
    if isinstance(x, CSEVariable):
        assert x.dtype is not None, f"{x} carries no dtype"
        return x.dtype
    if isinstance(x, bool):
        return torch.bool
    return torch.int64 if isinstance(x, int) else torch.float32


def as_dtype(x: Operand, dtype: torch.dtype) -> str:
    """GLSL text of ``x`` in the register type of ``dtype``."""
    x = unwrap(x)
    if isinstance(x, (bool, int, float)):
        return literal(x, dtype)
    return convert(str(x), dtype_of(x), dtype)


def wrapped(text: str, dtype: torch.dtype) -> str:
    wrap = glsl_type(dtype).wrap
    return f"{wrap}({text})" if wrap else text


def promoted(*args: Operand) -> torch.dtype:
    return promote_types([unwrap(a) for a in args])


def promoted_float(*args: Operand) -> torch.dtype:
    dtype = promoted(*args)
    return dtype if is_float(dtype) else torch.float32


def fits_int32(x: Operand) -> bool:
    x = unwrap(x)
    if isinstance(x, int):
        return -(1 << 31) <= x < 1 << 31
    if not isinstance(x, CSEVariable):
        return False
    if x in V.kernel.narrow or is_int32(x):
        return True
    return bool(x.bounds.lower >= -(1 << 31) and x.bounds.upper < 1 << 31)


def is_int32(x: CSEVariable) -> bool:
    return x.dtype is not None and glsl_type(x.dtype).register == "int"


def narrowed(x: Operand) -> Operand:
    """The int32 that ``x`` was widened from, if it was."""
    x = unwrap(x)
    return V.kernel.narrow.get(x, x) if isinstance(x, CSEVariable) else x


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
