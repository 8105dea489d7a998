"""From a filled-in skeleton to the text that Inductor's wrapper holds: GLSL plus what launching it takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vkinductor.runtime import context as runtime
from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.deviceinfo import DeviceInfo, Features
from vkinductor.runtime.spirv import float_controls
from vkinductor.templates import library, library_functions, render

_FUNCTION = re.compile(r"\bvk_\w+\b")
_BUFFER = re.compile(r"\bBuffer_(\w+)\b")

# Storage types that are not their own alignment in bytes by name.
_ALIGNMENT = {
    "float": 4,
    "double": 8,
    "float16_t": 2,
    "int8_t": 1,
    "uint8_t": 1,
    "int16_t": 2,
    "uint16_t": 2,
    "int": 4,
    "uint": 4,
    "int64_t": 8,
    "uint64_t": 8,
    "uvec2": 8,
    "uvec4": 16,
}

# The name of the type, where kernels may convert to it.
BFLOAT16 = "bfloat16_t"

# Text that makes a kernel need a GLSL extension beyond those of every kernel: a pattern, and words of which each match
# holds one. They are looked for first: a pattern that begins with a word's edge is tried at each character (11 ms a
# kernel for all of them).
_EXTENSIONS = (
    (("vk_atomic_add_f32_native",), re.compile(r"\bvk_atomic_add_f32_native\b"), "GL_EXT_shader_atomic_float"),
    (
        ("vk_atomic_", "atomicCompSwap(Buffer_uint64_t"),
        re.compile(r"\bvk_atomic_\w+64\b|\batomicCompSwap\(Buffer_uint64_t\b"),
        "GL_EXT_shader_atomic_int64",
    ),
    (("coopmat<",), re.compile(r"\bcoopmat<"), "GL_KHR_cooperative_matrix"),
    (("coopmat<", "gl_Scope"), re.compile(r"\bcoopmat<|\bgl_Scope"), "GL_KHR_memory_scope_semantics"),
    (("coopMat", "OPERAND("), re.compile(r"\bcoopMat\w+NV\b|\bOPERAND\("), "GL_NV_cooperative_matrix2"),
    (("bfloat16_t",), re.compile(r"\bbfloat16_t\b"), "GL_EXT_bfloat16"),
    (("dotPacked4x8EXT",), re.compile(r"\bdotPacked4x8EXT\b"), "GL_EXT_integer_dot_product"),
    (
        ("gl_NumSubgroups", "gl_Subgroup"),
        re.compile(r"\bgl_(?:NumSubgroups|Subgroup\w+)\b"),
        "GL_KHR_shader_subgroup_basic",
    ),
    (("subgroupAdd(",), re.compile(r"\bsubgroupAdd\("), "GL_KHR_shader_subgroup_arithmetic"),
    (("subgroupBroadcast(",), re.compile(r"\bsubgroupBroadcast\("), "GL_KHR_shader_subgroup_ballot"),
    (("subgroupClusteredAdd(",), re.compile(r"\bsubgroupClusteredAdd\("), "GL_KHR_shader_subgroup_clustered"),
    (("subgroupShuffleXor(",), re.compile(r"\bsubgroupShuffleXor\("), "GL_KHR_shader_subgroup_shuffle"),
    (("subgroupAny(",), re.compile(r"\bsubgroupAny\("), "GL_KHR_shader_subgroup_vote"),
)


def extensions(glsl: str) -> list[str]:
    """The names of the GLSL extensions that a kernel's text needs beyond those of every kernel."""
    return [name for words, pattern, name in _EXTENSIONS if any(w in glsl for w in words) and pattern.search(glsl)]


@dataclass(frozen=True)
class KernelText:
    """A generated kernel: its GLSL, argument layout, and how many items of x one workgroup covers.

    ``writes`` names the pointer arguments the kernel may write (the others are only read); ``nbytes`` holds the bytes
    behind each argument, None where that varies or the argument is no pointer. ``subgroup_size``: of the full subgroups
    that it is written for; None: any. ``turns``: pointer arguments of which each launch takes the next so many bytes.
    """

    glsl: str
    layout: ArgumentLayout
    per_group: int
    writes: tuple[str, ...]
    nbytes: tuple[int | None, ...]
    subgroup_size: int | None = None
    turns: tuple[tuple[str, int], ...] = ()

    def python(self) -> str:
        """The expression that defines the kernel in a generated wrapper (see launch.kernel)."""
        plain = "\\" not in self.glsl and "'''" not in self.glsl  # a user's GLSL may hold either
        glsl = f"'''\n{self.glsl}'''" if plain else repr(f"\n{self.glsl}")
        subgroups = "" if self.subgroup_size is None else f"subgroup_size={self.subgroup_size}, "
        turns = f"turns={self.turns!r}, " if self.turns else ""
        return (
            f"vulkan_kernel(KERNEL_NAME, fields={self.layout.fields!r}, writes={self.writes!r}, "
            f"nbytes={self.nbytes!r}, per_group={self.per_group}, {subgroups}{turns}glsl={glsl})"
        )


def _float_controls(features: Features, draft: str, half_results: bool, half_powers: bool) -> str:
    """Keep signed zeros, infinities, NaN and subnormals where the device can be asked to, and let it round itself what
    kernel ``draft`` converts to 16 bits, where it does that right (see lib/convert.glsl). ``half_results``: whether the
    library may be as exact as these need, ``half_powers``: whether its exponentials may (precision.py)."""
    halves = "vk_f32_to_f16" in draft
    halves = halves and features.float16 and features.rounding_rte_f16 and features.denorm_preserve_f16
    bfloats = "vk_f32_to_bf16" in draft and features.shader_bfloat16 and runtime.get().rounds_bfloat16
    controls = float_controls(
        signed_zero_inf_nan_preserve=32 if features.signed_zero_inf_nan_preserve_f32 else None,
        denorm_preserve=32 if features.denorm_preserve_f32 else None,
        rounding_mode_rte=16 if halves or bfloats else None,
    )
    defined = (
        ("HALF_RTE", halves),
        (f"NATIVE_BF16 {BFLOAT16}", bfloats),
        ("HALF_RESULTS", half_results),
        ("HALF_POWERS", half_powers),
    )
    return controls + "".join(f"#define {name}\n" for name, holds in defined if holds)


def assemble(
    template: str,
    layout: ArgumentLayout,
    info: DeviceInfo,
    context: dict[str, Any],
    per_group: int,
    writes: Iterable[str],
    nbytes: Sequence[int | None],
    turns: Iterable[tuple[str, int]] = (),
) -> KernelText:
    """Fill skeleton ``template``: header, argument block, the library functions used, then the body."""
    values = {
        **context,
        "float_controls": "",
        "arguments": layout.glsl(layout.inline(info.limits)),
        "library": "",
        "extensions": [],
        "buffers": [],
    }
    draft = render(template, **values)
    values["library"] = library(set(_FUNCTION.findall(draft)) & library_functions())
    draft += values["library"]
    values["float_controls"] = _float_controls(
        info.features, draft, context.get("half_results", False), context.get("half_powers", False)
    )
    draft += values["float_controls"]
    values["buffers"] = [(name, _ALIGNMENT[name]) for name in sorted(set(_BUFFER.findall(draft)))]
    values["extensions"] = extensions(draft)
    text = render(template, **values)
    subgroup_size = context.get("subgroup_size")
    return KernelText(text, layout, per_group, tuple(writes), tuple(nbytes), subgroup_size, tuple(turns))
