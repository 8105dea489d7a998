"""The dtype table: literals and conversions as GLSL text."""

from __future__ import annotations

import pytest
import torch
from compiled import DTYPES, name_of

from vkinductor.codegen.types import REGISTER_DTYPES, REGISTERS, TYPES, convert, glsl_type, literal
from vkinductor.runtime.errors import UnsupportedError


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_dtype_has_a_row(dtype: torch.dtype) -> None:
    entry = glsl_type(dtype)
    assert entry.dtype is dtype
    assert entry.register in REGISTERS
    assert entry.nbytes == dtype.itemsize
    assert REGISTER_DTYPES[entry.register].itemsize >= entry.nbytes


def test_an_unknown_dtype_is_named_with_a_way_out() -> None:
    with pytest.raises(UnsupportedError, match=r"complex64.*float32.*cast"):
        glsl_type(torch.complex64)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1, torch.float32, "1.0"),
        (-2.5, torch.float32, "(-2.5)"),
        (1e30, torch.float32, "1.0000000150474662e+30"),
        (1e39, torch.float32, "uintBitsToFloat(0x7f800000u)"),
        (float("-inf"), torch.float32, "uintBitsToFloat(0xff800000u)"),
        (float("nan"), torch.float16, "uintBitsToFloat(0x7fc00000u)"),
        (0.1, torch.float64, "0.1lf"),
        (float("inf"), torch.float64, "packDouble2x32(uvec2(0u, 0x7ff00000u))"),
        (300, torch.int8, "44"),
        (200, torch.int8, "(-56)"),
        (-1, torch.uint8, "255"),
        (-1, torch.uint32, "4294967295u"),
        (-1, torch.uint64, "18446744073709551615ul"),
        (-(1 << 31), torch.int32, "(-2147483647 - 1)"),
        (-(1 << 63), torch.int64, "(-9223372036854775807l - 1l)"),
        (7, torch.int64, "7l"),
        (3.9, torch.int32, "3"),
        (float("inf"), torch.int32, "0"),
        (2, torch.bool, "true"),
        (0.0, torch.bool, "false"),
    ],
)
def test_literal(value: float, dtype: torch.dtype, text: str) -> None:
    assert literal(value, dtype) == text


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (torch.float32, torch.float32, "v"),
        (torch.float32, torch.float16, "v"),
        (torch.float32, torch.bool, "(v != 0.0)"),
        (torch.bool, torch.float32, "(v ? 1.0 : 0.0)"),
        (torch.bool, torch.int64, "(v ? 1l : 0l)"),
        (torch.float32, torch.int8, "vk_f32_to_i8(v)"),
        (torch.float64, torch.uint64, "vk_f64_to_u64(v)"),
        (torch.float64, torch.float32, "vk_f64_to_f32(v)"),
        (torch.int64, torch.int32, "int(v)"),
        (torch.int64, torch.int8, "vk_wrap_i8(int(v))"),
        (torch.int16, torch.int32, "v"),
        (torch.uint8, torch.int16, "v"),
        (torch.uint16, torch.int16, "vk_wrap_i16(v)"),
        (torch.int8, torch.uint8, "vk_wrap_u8(v)"),
        (torch.int32, torch.float64, "double(v)"),
    ],
)
def test_convert(source: torch.dtype, target: torch.dtype, text: str) -> None:
    assert convert("v", source, target) == text


def test_table_and_conversions_are_total() -> None:
    for source in TYPES:
        for target in TYPES:
            assert "v" in convert("v", source, target)
