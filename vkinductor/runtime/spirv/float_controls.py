"""The GLSL that asks a driver to keep infinities, NaN, signed zeros and subnormals.

GLSL has no word for SPIR-V's float controls, but GL_EXT_spirv_intrinsics can set any execution mode; every
provider here takes it. A mode may be set only on a device that reports the matching `shader...Float32`
property (core in Vulkan 1.2), so the caller says which widths the device has.

What is asked for, and what is not:

* SignedZeroInfNanPreserve is wanted on every kernel: without it a driver may fold `x != x` or drop the sign of a
  zero.
* DenormPreserve is wanted where the device has it; where it has not, subnormals may be flushed and results may
  differ from a CPU's by less than the smallest normal number.
* RoundingModeRTE is what Vulkan already prescribes for 32-bit arithmetic; it is worth asking for where a conversion
  to 16 bits relies on it. The function library's conversions do not: they round on integers.

One width a mode: glslang keeps the last `spirv_execution_mode` of each mode and drops the others silently. Kernels
compute in 32 bits, so that is the width to give; what is computed in doubles tests bits, not comparisons.

The numbers are those of the SPIR-V specification, sections "Execution Mode" and "Capability".
"""

from __future__ import annotations

# mode: (execution mode, capability)
_MODES = {
    "denorm_preserve": (4459, 4464),
    "denorm_flush_to_zero": (4460, 4465),
    "signed_zero_inf_nan_preserve": (4461, 4466),
    "rounding_mode_rte": (4462, 4467),
}


def float_controls(
    *,
    signed_zero_inf_nan_preserve: int | None = None,
    denorm_preserve: int | None = None,
    denorm_flush_to_zero: int | None = None,
    rounding_mode_rte: int | None = None,
) -> str:
    """GLSL lines for the top of a shader (after #version, before any declaration) that set the modes.

    Each argument is the float width in bits (16, 32, 64) that a mode is for, which the device must report for it, or
    None. No widths at all give "". Raises `ValueError` for another width, or one both to be preserved and flushed.
    """
    wanted = {
        "signed_zero_inf_nan_preserve": signed_zero_inf_nan_preserve,
        "denorm_preserve": denorm_preserve,
        "denorm_flush_to_zero": denorm_flush_to_zero,
        "rounding_mode_rte": rounding_mode_rte,
    }
    if denorm_preserve is not None and denorm_preserve == denorm_flush_to_zero:
        raise ValueError(f"subnormals of {denorm_preserve} bits cannot be both preserved and flushed")
    lines = []
    for mode, width in wanted.items():
        if width is None:
            continue
        if width not in (16, 32, 64):
            raise ValueError(f"no float of {width} bits: {mode} takes 16, 32 or 64")
        number, capability = _MODES[mode]
        lines.append(f"spirv_execution_mode(capabilities = [{capability}], {number}, {width});")
    if not lines:
        return ""
    return "\n".join(["#extension GL_EXT_spirv_intrinsics : require", *lines, ""])
