"""Atomic additions for scatters, by what the device offers.

Native where there is an instruction; otherwise a compare-and-swap loop over the word that holds the element
(lib/atomics.glsl). Floating-point sums then depend on the order of arrival, as on every GPU.
"""

from __future__ import annotations

import torch

from vkinductor.runtime.deviceinfo import Features
from vkinductor.runtime.errors import UnsupportedError

from .types import glsl_type


class Atomics:
    """Emits ``buffer[index] += value`` statements."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def add(self, pointer: str, index: str, dtype: torch.dtype, value: str) -> str:
        """A GLSL statement; ``pointer`` a uint64_t address, ``index`` in elements, ``value`` a register."""
        address = f"{pointer} + uint64_t({index}) * {glsl_type(dtype).nbytes}ul"
        return f"{self._function(dtype)}({address}, {value});"

    def _function(self, dtype: torch.dtype) -> str:
        if dtype == torch.float32:
            return "vk_atomic_add_f32_native" if self.features.float32_atomic_add else "vk_atomic_add_f32"
        if dtype in (torch.int64, torch.uint64, torch.float64) and not self.features.int64_atomics:
            raise UnsupportedError(
                f"scatter-add on {dtype} needs 64-bit buffer atomics, which this device lacks: use a 32-bit dtype"
            )
        names = {
            torch.int32: "vk_atomic_add_i32",
            torch.uint32: "vk_atomic_add_u32",
            torch.int64: "vk_atomic_add_i64",
            torch.uint64: "vk_atomic_add_u64",
            torch.float64: "vk_atomic_add_f64",
            torch.float16: "vk_atomic_add_f16",
            torch.bfloat16: "vk_atomic_add_bf16",
            torch.int8: "vk_atomic_add_8",
            torch.uint8: "vk_atomic_add_8",
            torch.bool: "vk_atomic_or_bool",
            torch.int16: "vk_atomic_add_16",
            torch.uint16: "vk_atomic_add_16",
        }
        return names[dtype]
