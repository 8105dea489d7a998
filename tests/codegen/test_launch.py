"""Kernels that generated wrappers launch."""

from __future__ import annotations

import torch

from vkinductor.codegen.counters import SHARED, turn_bytes
from vkinductor.codegen.launch import Kernel

ADDS = """#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { int d[]; };
layout(push_constant, scalar) uniform Args { uint64_t words; };
layout(local_size_x = 1) in;
void main() { Words(words).d[gl_WorkGroupID.x] += 1; }
"""


def test_launches_take_turns():
    words = torch.zeros(12, dtype=torch.int32, device="vulkan")
    kernel = Kernel(
        "adds", fields=(("words", "ptr"),), writes=("words",), nbytes=(48,), per_group=1, glsl=ADDS,
        turns=(("words", 16),),
    )  # fmt: skip
    for _ in range(4):
        kernel.run(words, 2)
    assert words.tolist() == [2, 2, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]


def test_bytes_of_a_turn():
    assert [turn_bytes(n) for n in (1, 64, 65, SHARED)] == [256, 256, 512, 4 * SHARED]
    assert turn_bytes(SHARED + 1) == 4 * SHARED + 4  # a buffer of its own
