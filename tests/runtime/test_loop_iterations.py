"""``Limits.max_loop_iterations`` against what the driver does: all loops of an invocation together."""

from __future__ import annotations

import numpy as np
import pytest

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.deviceinfo import UNLIMITED
from vkinductor.runtime.pipeline import KernelSource

LOCAL = 16
LAYOUT = ArgumentLayout((("n", "u32"), ("m", "u32"), ("dst", "ptr")))

LOOPS = {
    "one": "for (uint i = 0u; i < n; ++i) { ++passes; mixed ^= passes; }",
    "two": "for (uint i = 0u; i < n / 2u; ++i) { ++passes; mixed ^= passes; }"
    " for (uint i = n / 2u; i < n; ++i) { ++passes; mixed ^= passes * 3u; }",
    "nested": "for (uint i = 0u; i < n / m; ++i) { for (uint j = 0u; j < m; ++j) { ++passes; mixed ^= passes; } }",
    "diverging": "for (uint i = 0u; i < (lane == 3u ? n : 5u); ++i) { ++passes; mixed ^= passes; }",
}


def counted(device, body: str, n: int, m: int = 100) -> int:
    """The most passes that an invocation made."""
    extensions = "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
    glsl = f"""#version 460
{extensions}layout(local_size_x = {LOCAL}) in;
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words {{ uint at[]; }};
{LAYOUT.glsl(True)}
void main() {{
    uint lane = gl_LocalInvocationID.x, n = ARG.n, m = ARG.m, passes = 0u, mixed = 0u;
    {body}
    Words(ARG.dst).at[2u * lane] = passes;
    Words(ARG.dst).at[2u * lane + 1u] = mixed;
}}
"""
    pipeline = device.pipelines.get(KernelSource("passes", glsl, LAYOUT))
    out = np.zeros(2 * LOCAL, np.uint32)
    address = device.memory.allocate(out.nbytes)
    device.stream.dispatch(pipeline, (1, 1, 1), pipeline.pack(n, m, address), (), ((address, out.nbytes),))
    device.stream.download(out.ctypes.data, address, out.nbytes)
    device.stream.synchronize()
    device.memory.free(address)
    return int(out.reshape(-1, 2)[:, 0].max())


@pytest.mark.parametrize("kind", LOOPS)
def test_loops_run_as_long_as_the_limit_says(device, kind):
    most = min(device.info.limits.max_loop_iterations, 100_000) * 15 // 16
    # An inner loop of m trips costs m + 2.
    n = most // 102 * 100
    assert counted(device, LOOPS[kind], n) == n


def test_the_limit_is_the_drivers(device):
    most = device.info.limits.max_loop_iterations
    if most == UNLIMITED:
        assert counted(device, LOOPS["one"], 300_000) == 300_000
    else:
        assert counted(device, LOOPS["one"], most + 9) == most
