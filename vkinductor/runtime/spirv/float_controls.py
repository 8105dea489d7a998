"""The GLSL that asks a driver to keep infinities, NaN, signed zeros and subnormals.

GLSL has no word for SPIR-V's float controls, but GL_EXT_spirv_intrinsics can set any execution mode; every
provider here takes it. A mode may be set only on a device that reports the matching `shader...Float32`
property (core in Vulkan 1.2), so the caller says which widths the device has.

What is asked for, and what is not:

* SignedZeroInfNanPreserve is wanted on every kernel: without it a driver may fold `x != x` or drop the sign
  of a zero.
* DenormPreserve is wanted where the device has it; where it has not, subnormals may be flushed and results
  may differ from a CPU's by less than the smallest normal number.
* RoundingModeRTE is what Vulkan already prescribes for 32-bit arithmetic; it is asked for where 16-bit or
  64-bit conversions rely on it and the device has it. Conversion to 16 bits does not rely on it: the library
  does it on integers.

The numbers are those of the SPIR-V specification, sections "Execution Mode" and "Capability".
"""

from __future__ import annotations

from collections.abc import Iterable

# mode: (execution mode, capability)
_MODES = {
    "denorm_preserve": (4459, 4464),
    "denorm_flush_to_zero": (4460, 4465),
    "signed_zero_inf_nan_preserve": (4461, 4466),
    "rounding_mode_rte": (4462, 4467),
}


def float_controls(
    *,
    signed_zero_inf_nan_preserve: Iterable[int] = (),
    denorm_preserve: Iterable[int] = (),
    denorm_flush_to_zero: Iterable[int] = (),
    rounding_mode_rte: Iterable[int] = (),
) -> str:
    """GLSL lines for the top of a shader (before any declaration, after #version) that set the modes.

    Each argument lists float widths in bits (16, 32, 64) that the device reports for that mode. No widths at
    all give "". Raises `ValueError` for another width, or where a width is both to be preserved and flushed.
    """
    wanted = {
        "signed_zero_inf_nan_preserve": tuple(signed_zero_inf_nan_preserve),
        "denorm_preserve": tuple(denorm_preserve),
        "denorm_flush_to_zero": tuple(denorm_flush_to_zero),
        "rounding_mode_rte": tuple(rounding_mode_rte),
    }
    if both := set(wanted["denorm_preserve"]) & set(wanted["denorm_flush_to_zero"]):
        raise ValueError(f"subnormals of width {sorted(both)} cannot be both preserved and flushed")
    lines = []
    for mode, widths in wanted.items():
        number, capability = _MODES[mode]
        for width in widths:
            if width not in (16, 32, 64):
                raise ValueError(f"no float of {width} bits: {mode} takes 16, 32 and 64")
            lines.append(f"spirv_execution_mode(capabilities = [{capability}], {number}, {width});")
    if not lines:
        return ""
    return "\n".join(["#extension GL_EXT_spirv_intrinsics : require", *lines, ""])
