"""Atomics for scatters, by what the device offers.

Additions are native where there is an instruction, otherwise a compare-and-swap loop over the word that holds the
element (lib/atomics.glsl); so are all other reductions. Floating-point sums and products depend on the order of
arrival, as on every GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.utils import upcast_compute_type
from torch.utils._sympy.value_ranges import ValueRanges

from vkinductor.runtime.deviceinfo import Features
from vkinductor.runtime.errors import UnsupportedError

from .operands import bits_of, from_bits
from .ops import GlslOverrides
from .types import glsl_type

# Store modes of Inductor's (atomic_mul is ours) and what combines the old element and the new value.
COMBINE: dict[str, Any] = {
    "atomic_max": GlslOverrides.maximum,
    "atomic_min": GlslOverrides.minimum,
    "atomic_mul": GlslOverrides.mul,
}


class Atomics:
    """Emits statements that change ``buffer[index]``."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def apply(self, mode: str, pointer: str, index: str, dtype: torch.dtype, value: str) -> str:
        """A GLSL statement; ``pointer`` a uint64_t address, ``index`` in elements, ``value`` a register.

        Raises UnsupportedError.
        """
        if mode == "atomic_add":
            return self.add(pointer, index, dtype, value)
        if dtype.itemsize == 8 and not self.features.int64_atomics:
            raise UnsupportedError(f"a scatter on {dtype} needs 64-bit buffer atomics, which this device lacks")
        bytes_, register = dtype.itemsize, upcast_compute_type(dtype)
        word, mask = ("uint64_t", "") if bytes_ == 8 else ("uint", {1: "0xffu", 2: "0xffffu"}.get(bytes_, ""))
        old = CSEVariable("old", ValueRanges.unknown(), register, ())
        new = CSEVariable("new", ValueRanges.unknown(), register, ())
        bits = f"{word}({bits_of('result', dtype)})"
        text = glsl_type(register).register
        element, desired = (
            ("(expected >> shift) & " + mask, f"({bits} & {mask}) << shift") if mask else ("expected", bits)
        )
        kept = f"(expected & ~({mask} << shift)) | " if mask else ""
        lines = [
            f"{text} new = {value};",
            f"uint64_t at = {pointer} + uint64_t({index}) * {glsl_type(dtype).nbytes}ul;",
            f"int shift = int(at & 3ul) * 8; at &= ~{max(bytes_, 4) - 1}ul;",
            f"{word} seen = Buffer_{word}(at).d[0]; {word} expected;",
            f"do {{ expected = seen; {text} old = {from_bits(element, dtype)};",
            f"{text} result = {COMBINE[mode](old, new)};",
            f"{word} desired = {kept}({desired});",
            f"if (desired == expected) break; seen = atomicCompSwap(Buffer_{word}(at).d[0], expected, desired);",
            "} while (seen != expected);",
        ]
        return f"{{ {' '.join(lines)} }}"

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
