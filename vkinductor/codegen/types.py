"""The dtype table: how each torch dtype lives in a buffer and in a register of a GLSL shader.

Buffers hold a dtype's own bytes. Registers hold a *compute type*: half precisions widen to ``float``
and integers under 32 bits to ``int``, because storage-only 8/16-bit support is the norm and because
Inductor already computes half precision in float32. Operators that can leave the range of a narrow
integer wrap their result back (``GlslType.wrap``); everything else never sees the difference.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch

from vkinductor.runtime.errors import UnsupportedError


@dataclass(frozen=True)
class GlslType:
    """One dtype's GLSL spelling.

    ``storage`` is the element type in memory, ``register`` the compute type, ``load``/``store`` format
    strings that convert between the two, ``wrap`` the library function that brings a register value back
    into the dtype's range (empty when the register has exactly the dtype's width), ``suffix`` the literal suffix.
    """

    dtype: torch.dtype
    storage: str
    register: str
    load: str = "{}"
    store: str = "{}"
    wrap: str = ""
    suffix: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def buffer(self) -> str:
        """Name of the buffer_reference block type with an array of this storage type."""
        return f"Buffer_{self.storage}"


_TABLE = (
    GlslType(torch.float32, "float", "float"),
    GlslType(torch.float64, "double", "double", suffix="lf"),
    GlslType(
        torch.float16,
        "float16_t",
        "float",
        load="float({})",
        store="vk_f32_to_f16({})",
    ),
    GlslType(
        torch.bfloat16,
        "uint16_t",
        "float",
        load="vk_bf16_to_f32({})",
        store="vk_f32_to_bf16({})",
    ),
    GlslType(torch.int8, "int8_t", "int", load="int({})", store="int8_t({})", wrap="vk_wrap_i8"),
    GlslType(torch.uint8, "uint8_t", "int", load="int({})", store="uint8_t({})", wrap="vk_wrap_u8"),
    GlslType(torch.int16, "int16_t", "int", load="int({})", store="int16_t({})", wrap="vk_wrap_i16"),
    GlslType(torch.uint16, "uint16_t", "int", load="int({})", store="uint16_t({})", wrap="vk_wrap_u16"),
    GlslType(torch.int32, "int", "int"),
    GlslType(torch.uint32, "uint", "uint", suffix="u"),
    GlslType(torch.int64, "int64_t", "int64_t", suffix="l"),
    GlslType(torch.uint64, "uint64_t", "uint64_t", suffix="ul"),
    GlslType(torch.bool, "uint8_t", "bool", load="({} != uint8_t(0))", store="uint8_t({} ? 1 : 0)"),
)

TYPES: dict[torch.dtype, GlslType] = {entry.dtype: entry for entry in _TABLE}

# Registers a scalar can be declared with; sections.py recognises declarations by them.
REGISTERS = ("float", "double", "int", "uint", "int64_t", "uint64_t", "bool")

# dtype that a register holds when only the register is known.
REGISTER_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "int": torch.int32,
    "uint": torch.uint32,
    "int64_t": torch.int64,
    "uint64_t": torch.uint64,
    "bool": torch.bool,
}


def glsl_type(dtype: torch.dtype) -> GlslType:
    """The table row of ``dtype``; raises UnsupportedError for a dtype no GPU kernel can hold."""
    entry = TYPES.get(dtype)
    if entry is None:
        raise UnsupportedError(
            f"{dtype} has no Vulkan kernels. Supported: {', '.join(str(d) for d in TYPES)}; "
            "cast the tensor, or keep this part of the model on the CPU."
        )
    return entry


def is_float(dtype: torch.dtype) -> bool:
    """Whether the register of ``dtype`` is a floating-point one."""
    return dtype.is_floating_point


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A GLSL expression of ``value`` in the register type of ``dtype``.

    Integers out of the dtype's range wrap as a C cast would; floats round to float32 for ``float`` registers.
    """
    entry = glsl_type(dtype)
    register = entry.register
    if register == "bool":
        return "true" if value else "false"
    if register in ("float", "double"):
        return _float_literal(float(value), register)
    if isinstance(value, float) and not math.isfinite(value):
        value = 0
    bits = 8 * entry.nbytes
    wrapped = int(value) & ((1 << bits) - 1)
    if dtype.is_signed and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    if register == "int64_t" and wrapped == -(1 << 63):
        return "(-9223372036854775807l - 1l)"
    if register == "int" and wrapped == -(1 << 31):
        return "(-2147483647 - 1)"
    text = f"{wrapped}{entry.suffix}"
    return f"({text})" if wrapped < 0 else text


def _float_literal(value: float, register: str) -> str:
    if register == "float":
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isnan(value):
        # Bit patterns, not 0.0/0.0: drivers fold the latter as they like.
        return "uintBitsToFloat(0x7fc00000u)" if register == "float" else "packDouble2x32(uvec2(0u, 0x7ff80000u))"
    if math.isinf(value):
        high = 0x7F800000 if register == "float" else 0x7FF00000
        if value < 0:
            high |= 0x80000000
        return f"uintBitsToFloat({high:#x}u)" if register == "float" else f"packDouble2x32(uvec2(0u, {high:#x}u))"
    text = repr(value)
    if "e" not in text and "." not in text:
        text += ".0"
    if register == "double":
        text += "lf"
    return f"({text})" if text.startswith("-") else text


def convert(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """GLSL that converts register ``value`` of dtype ``source`` to the register of ``target``.

    Narrowing to an 8/16-bit integer wraps; float to integer truncates toward zero; anything to bool tests != 0.
    """
    source_type, target_type = glsl_type(source), glsl_type(target)
    if source == target:
        return value
    if target_type.register == "bool":
        return f"({value} != {literal(0, source)})"
    if source_type.register == "bool":
        return f"({value} ? {literal(1, target)} : {literal(0, target)})"
    if is_float(source) and not is_float(target):
        # GLSL leaves an out-of-range float -> integer conversion undefined; the library's is not.
        bits = "f64" if source_type.register == "double" else "f32"
        kind = f"{'i' if target.is_signed else 'u'}{8 * target.itemsize}"
        return f"vk_{bits}_to_{kind}({value})"
    if source_type.register == "double" and target_type.register == "float":
        return f"vk_f64_to_f32({value})"
    same = target_type.register == source_type.register
    converted = value if same else f"{target_type.register}({value})"
    if target_type.wrap and not is_float(source) and not _range_contains(target, source):
        converted = f"{target_type.wrap}({converted})"
    return converted


def _range_contains(outer: torch.dtype, inner: torch.dtype) -> bool:
    outer_info, inner_info = torch.iinfo(outer), torch.iinfo(inner)
    return outer_info.min <= inner_info.min and inner_info.max <= outer_info.max
