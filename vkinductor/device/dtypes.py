"""The dtypes of the device: one table that says how each is described to DLPack and how GLSL stores and
computes it.

Owns facts about dtypes only. Who may use a storage type on a given device is decided by its features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DType:
    """One torch dtype.

    dlpack: (type code, bits) of DLPack, or None when DLPack lacks the dtype and the tensor is made as bytes
    first. storage: GLSL type of one element in memory (halves as their bits: no device feature is needed
    then, and no driver
        rounds them); None for types that are only moved, never computed with.
    register: GLSL type it is loaded into and computed in.
    short: its name in the function library, as in `vk_f32_to_i8`.
    component: for complex dtypes, the dtype of the two parts.
    """

    dlpack: tuple[int, int] | None
    storage: str | None = None
    register: str | None = None
    short: str = ""
    component: torch.dtype | None = None


# DLPack's type codes: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool (dlpack.h).
DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType((2, 32), "float", "float", "f32"),
    torch.float16: DType((2, 16), "uint16_t", "float", "f16"),
    torch.bfloat16: DType((4, 16), "uint16_t", "float", "bf16"),
    torch.float64: DType((2, 64), "double", "double", "f64"),
    torch.int8: DType((0, 8), "int8_t", "int", "i8"),
    torch.int16: DType((0, 16), "int16_t", "int", "i16"),
    torch.int32: DType((0, 32), "int", "int", "i32"),
    torch.int64: DType((0, 64), "int64_t", "int64_t", "i64"),
    torch.uint8: DType((1, 8), "uint8_t", "int", "u8"),
    torch.uint16: DType((1, 16), "uint16_t", "int", "u16"),
    torch.uint32: DType((1, 32), "uint", "uint", "u32"),
    torch.uint64: DType((1, 64), "uint64_t", "uint64_t", "u64"),
    torch.bool: DType((6, 8), "uint8_t", "bool", "bool"),
    torch.complex32: DType((5, 32), component=torch.float16),
    torch.complex64: DType((5, 64), component=torch.float32),
    torch.complex128: DType((5, 128), component=torch.float64),
    # DLPack grew codes for these after torch 2.11's copy of it.
    torch.float8_e4m3fn: DType(None),
    torch.float8_e4m3fnuz: DType(None),
    torch.float8_e5m2: DType(None),
    torch.float8_e5m2fnuz: DType(None),
    torch.float8_e8m0fnu: DType(None),
}
