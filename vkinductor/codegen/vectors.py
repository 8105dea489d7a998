"""Wide loads: the GLSL that takes several elements with one load and picks each out of the 32-bit words."""

from __future__ import annotations

import re

import torch

from .types import convert, glsl_type

# 32-bit words of a load -> GLSL type.
_WORDS = {1: "uint", 2: "uvec2", 4: "uvec4"}

# Bytes of an element of which several share a word -> (shift of its number that gives the word's, mask for its place).
_SHARING = {2: (1, 1), 1: (2, 3)}

# dtype -> how the element at place {1} of the word {0} is had, or the one of the words {0} (lower) and {1}.
PICK = {
    torch.float32: "uintBitsToFloat({0})",
    torch.int32: "int({0})",
    torch.uint32: "{0}",
    torch.float16: "unpackHalf2x16({0})[{1}]",
    torch.bfloat16: "uintBitsToFloat({1} == 0 ? {0} << 16 : {0} & 0xffff0000u)",
    torch.int16: "bitfieldExtract(int({0}), 16 * {1}, 16)",
    torch.uint16: "int(bitfieldExtract({0}, 16 * {1}, 16))",
    torch.int8: "bitfieldExtract(int({0}), 8 * {1}, 8)",
    torch.uint8: "int(bitfieldExtract({0}, 8 * {1}, 8))",
    torch.bool: "(bitfieldExtract({0}, 8 * {1}, 8) != 0u)",
    torch.int64: "int64_t(packUint2x32(uvec2({0}, {1})))",
    torch.uint64: "packUint2x32(uvec2({0}, {1}))",
    torch.float64: "packDouble2x32(uvec2({0}, {1}))",
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
    words = words_of(dtype, width, name)
    each = 4 // dtype.itemsize
    if not each:
        return [PICK[dtype].format(words[2 * i], words[2 * i + 1]) for i in range(width)]
    return [PICK[dtype].format(words[i // each], i % each) for i in range(width)]


# An integer of 23 bits as the low end of a float of 2 ** 23 and more: on a GPU quicker than its conversion.
_BYTE = "(uintBitsToFloat(bitfieldExtract({0} ^ 0x80808080u, 8 * {1}, 8) | 0x4b000000u) - 8388736.0)"


def converted(stored: torch.dtype, dtype: torch.dtype, width: int, name: str) -> list[str]:
    """GLSL of each of the ``width`` elements of dtype ``stored`` that register ``name`` holds, as ``dtype``."""
    if stored == dtype:
        return elements(dtype, width, name)
    if stored == torch.int8 and width > 1 and glsl_type(dtype).register == "float":
        words = words_of(stored, width, name)
        return [_BYTE.format(words[i // 4], i % 4) for i in range(width)]
    return [convert(element, stored, dtype) for element in elements(stored, width, name)]


def words_of(dtype: torch.dtype, width: int, name: str) -> list[str]:
    """GLSL of each 32-bit word of a load of ``width`` elements, that register ``name`` of ``load_type`` holds."""
    count = dtype.itemsize * width // 4
    return [name] if count == 1 else [f"{name}.{'xyzw'[i]}" for i in range(count)]


def picked_from(dtype: torch.dtype, text: str) -> str | None:
    """The word that ``text``, GLSL, takes element v of, where that is all it does, as `element` writes it."""
    if dtype.itemsize not in _SHARING:
        return None
    shift, mask = _SHARING[dtype.itemsize]
    pattern = re.escape(PICK[dtype]).replace(r"\{1\}", re.escape(f"(v & {mask})"))
    pattern = pattern.replace(r"\{0\}", "(?P<word>.+)", 1).replace(r"\{0\}", "(?P=word)")
    match = re.fullmatch(pattern, text)
    return match["word"] if match is not None and f"v >> {shift}" in match["word"] else None


def element(dtype: torch.dtype, words: str, v: str) -> str:
    """GLSL of element ``v``, an index in GLSL, of an array ``words`` of 32-bit words."""
    if dtype.itemsize == 8:
        return PICK[dtype].format(f"{words}[2 * {v}]", f"{words}[2 * {v} + 1]")
    if dtype.itemsize == 4:
        return PICK[dtype].format(f"{words}[{v}]")
    shift, mask = _SHARING[dtype.itemsize]
    return PICK[dtype].format(f"{words}[{v} >> {shift}]", f"({v} & {mask})")
