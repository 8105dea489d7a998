"""Wide loads: the GLSL that takes several elements with one load and picks each out of the 32-bit words."""

from __future__ import annotations

import torch

from .types import glsl_type

# 32-bit words of a load -> GLSL type.
_WORDS = {1: "uint", 2: "uvec2", 4: "uvec4"}

# dtype -> how an element is had from the word that holds it ({0}; {1}: its first bit), or from two words.
_PICK = {
    torch.float32: "uintBitsToFloat({0})",
    torch.int32: "int({0})",
    torch.uint32: "{0}",
    torch.int8: "bitfieldExtract(int({0}), {1}, 8)",
    torch.uint8: "int(bitfieldExtract({0}, {1}, 8))",
    torch.int16: "bitfieldExtract(int({0}), {1}, 16)",
    torch.uint16: "int(bitfieldExtract({0}, {1}, 16))",
    torch.bool: "(bitfieldExtract({0}, {1}, 8) != 0u)",
}
_PICK_PAIR = {
    torch.float64: "packDouble2x32(uvec2({0}, {1}))",
    torch.int64: "int64_t(packUint2x32(uvec2({0}, {1})))",
    torch.uint64: "packUint2x32(uvec2({0}, {1}))",
}


def load_type(dtype: torch.dtype, width: int) -> str:
    """The GLSL type of a load of ``width`` elements: the dtype's storage type for one, else of 32-bit words."""
    nbytes = dtype.itemsize * width
    return glsl_type(dtype).storage if width == 1 or nbytes < 4 else _WORDS[nbytes // 4]


def narrowest(dtype: torch.dtype, width: int) -> int:
    """``width``, or 1 where a load of it is less than a word."""
    return width if width * dtype.itemsize >= 4 else 1


def elements(dtype: torch.dtype, width: int, name: str) -> list[str]:
    """GLSL of each of the ``width`` elements, that register ``name`` of ``load_type`` holds."""
    entry = glsl_type(dtype)
    if width == 1:
        return [entry.load.format(name)]
    nwords = dtype.itemsize * width // 4
    words = [name] if nwords == 1 else [f"{name}.{'xyzw'[i]}" for i in range(nwords)]
    if dtype in _PICK_PAIR:
        return [_PICK_PAIR[dtype].format(words[2 * i], words[2 * i + 1]) for i in range(width)]
    if dtype == torch.float16:
        return [f"unpackHalf2x16({word}).{part}" for word in words for part in "xy"]
    if dtype == torch.bfloat16:
        return [f"uintBitsToFloat({word} {part})" for word in words for part in ("<< 16", "& 0xffff0000u")]
    each = 4 // dtype.itemsize
    return [_PICK[dtype].format(words[i // each], i % each * 8 * dtype.itemsize) for i in range(width)]
