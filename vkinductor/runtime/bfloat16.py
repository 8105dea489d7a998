"""Whether a device rounds to bfloat16 as torch does, found by letting it convert.

With VK_KHR_shader_bfloat16 a conversion may be one instruction for two values instead of six for each, but a driver
may round as it likes: NVIDIA's (580, H200) cuts the lower bits off, and turns some NaN into infinity, whether or not a
shader asks for rounding to nearest even in 16 bits.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.errors import VulkanError
from vkinductor.runtime.pipeline import KernelSource
from vkinductor.runtime.spirv import float_controls

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

EXTENSION = "GL_EXT_bfloat16"
# As kernels convert (templates/lib/convert.glsl): one, and the two of a word.
_PAIR = "packUint2x16(bfloat16BitsToUintEXT(bf16vec2(bfloat16_t(x), bfloat16_t(x))))"
CONVERSION = f"uvec3(uint(bfloat16BitsToUintEXT(bfloat16_t(x))), {_PAIR} & 0xffffu, {_PAIR} >> 16)"

_LAYOUT = ArgumentLayout((("wrong", "ptr"),))


def rounds(device: Device) -> bool:
    """Whether kernels that ask for rounding to nearest even in 16 bits may convert floats to bfloat16 on `device`.

    Runs a small kernel there and waits for it.
    """
    features = device.info.features
    known = features.shader_bfloat16 and features.int16 and features.rounding_rte_f16
    if not known or not device.compiler.supports(EXTENSION):
        return False
    controls = float_controls(
        signed_zero_inf_nan_preserve=32 if features.signed_zero_inf_nan_preserve_f32 else None,
        denorm_preserve=32 if features.denorm_preserve_f32 else None,
        rounding_mode_rte=16,
    )
    extensions = (EXTENSION, "GL_EXT_shader_explicit_arithmetic_types")
    header = "".join(f"#extension {name} : require\n" for name in extensions) + controls
    try:
        return wrong(device, header, CONVERSION) == 0
    except VulkanError:
        return False


def wrong(device: Device, header: str, conversion: str) -> int:
    """How many floats `x`, of a quarter of a million, the GLSL expression `conversion` (an uvec3) gives wrong bits for.

    All upper halves, with lower halves below, at and above the middle; a NaN has to stay one.
    """
    extensions = "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
    glsl = f"""#version 460
{extensions}{header}layout(local_size_x = 64) in;
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Count {{ uint v; }};
{_LAYOUT.glsl(True)}
const uint LOWER[4] = uint[](1u, 0x7fffu, 0x8000u, 0x8001u);
void main() {{
    uint found = 0u;
    for (uint i = 0u; i < 4u; ++i) {{
        uint bits = (gl_WorkGroupID.x * 64u + gl_LocalInvocationID.x) << 16 | LOWER[i];
        float x = uintBitsToFloat(bits);
        uvec3 got = {conversion};
        bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        uint nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        bvec3 right = nan ? greaterThan(got & 0x7fffu, uvec3(0x7f80u)) : equal(got, uvec3(nearest));
        found += all(right) ? 0u : 1u;
    }}
    if (found > 0u) atomicAdd(Count(ARG.wrong).v, found);
}}
"""
    pipeline = device.pipelines.get(KernelSource("bfloat16", glsl, _LAYOUT))
    result = ctypes.c_uint32()
    address = device.memory.allocate(4)
    try:
        touched = ((address, 4),)
        device.stream.fill(address, 4, 0)
        device.stream.dispatch(pipeline, (1 << 16 >> 6, 1, 1), pipeline.pack(address), touched, touched)
        device.stream.download(ctypes.addressof(result), address, 4)
    finally:
        device.memory.free(address)
    return result.value
