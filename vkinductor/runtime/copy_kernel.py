"""A compute shader that copies, for large ranges on cards whose copy commands are slow.

vkCmdCopyBuffer moves 0.85 TB/s on an H100 (driver 580, either queue family), this shader 3.0. Owns the shader and
the decision; recording is the stream's.
"""

from __future__ import annotations

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.grid import LINEAR_GROUP_ID
from vkinductor.runtime.pipeline import KernelSource

# Below this a copy command is as fast: the launch dominates.
MIN_BYTES = 1 << 20

# Bytes an invocation moves at a time, and the alignment that both addresses need.
VECTOR = 16
LOCAL_SIZE = 256

_LAYOUT = ArgumentLayout((("count", "u64"), ("dst", "ptr"), ("src", "ptr")))


def source() -> KernelSource:
    """The kernel: count 16-byte words from src to dst, one an invocation."""
    extensions = "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
    glsl = f"""#version 460
{extensions}layout(local_size_x = {LOCAL_SIZE}) in;
layout(buffer_reference, scalar, buffer_reference_align = {VECTOR}) buffer Words {{ uvec4 v; }};
{_LAYOUT.glsl(True)}
void main() {{
    uint group = {LINEAR_GROUP_ID};
    uint64_t at = uint64_t(group) * {LOCAL_SIZE} + gl_LocalInvocationID.x;
    if (at < ARG.count) Words(ARG.dst + at * {VECTOR}).v = Words(ARG.src + at * {VECTOR}).v;
}}
"""
    return KernelSource("copy", glsl, _LAYOUT)


def suits(dst: int, src: int, nbytes: int, kind: str) -> bool:
    """Whether a copy between these addresses on a device of this kind goes through the kernel."""
    return kind == "discrete" and nbytes >= MIN_BYTES and not (dst | src) % VECTOR
