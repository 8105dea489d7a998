"""Barriers of a subgroup, to which subgroups of a workgroup come a different number of times."""

from __future__ import annotations

import numpy as np

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.drivers import driver_of
from vkinductor.runtime.pipeline import KernelSource

LAYOUT = ArgumentLayout((("n", "u32"), ("dst", "ptr")))


def passes_seen(device, wait: str) -> list[int]:
    """Of the first subgroup's five, those that each invocation knows of behind a barrier of the workgroup."""
    size = device.info.limits.subgroup_size
    extensions = "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
    glsl = f"""#version 460
{extensions}#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = {2 * size}) in;
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words {{ uint at[]; }};
{LAYOUT.glsl(True)}
shared uint passes[2];
void main() {{
    const uint lane = gl_LocalInvocationID.x, own = lane / {size}u;
    if (lane % {size}u == 0u) {{
        passes[own] = 0u;
    }}
    {wait}();
    for (uint i = 0u; i < ARG.n * (1u - own); ++i) {{
        {wait}();
        if (lane % {size}u == 0u) {{
            passes[own] = i + 1u;
        }}
        {wait}();
    }}
    barrier();
    Words(ARG.dst).at[lane] = passes[0];
}}
"""
    pipeline = device.pipelines.get(KernelSource("subgroup_barriers", glsl, LAYOUT))
    out = np.zeros(2 * size, np.uint32)
    address = device.memory.allocate(out.nbytes)
    device.stream.dispatch(pipeline, (1, 1, 1), pipeline.pack(5, address), (), ((address, out.nbytes),))
    device.stream.download(out.ctypes.data, address, out.nbytes)
    device.stream.synchronize()
    device.memory.free(address)
    return out.tolist()


def test_the_barrier_of_a_subgroup_is_what_is_known_of_the_driver(device):
    every = [5] * (2 * device.info.limits.subgroup_size)
    if driver_of(device.info).joins_subgroups:
        assert passes_seen(device, "subgroupBarrier") != every
        assert passes_seen(device, "subgroupMemoryBarrierShared") == every
    else:
        assert passes_seen(device, "subgroupBarrier") == every
