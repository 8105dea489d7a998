"""Which GLSL extensions a kernel's text asks for."""

from __future__ import annotations

import pytest

from vkinductor.codegen.source import extensions

NEEDED = {
    "vk_atomic_add_f32_native(p, x);": ["GL_EXT_shader_atomic_float"],
    "vk_atomic_max_i64(p, x);": ["GL_EXT_shader_atomic_int64"],
    "atomicCompSwap(Buffer_uint64_t(p).v, a, b);": ["GL_EXT_shader_atomic_int64"],
    "coopmat<float, gl_ScopeSubgroup, 8, 8, 0> m;": ["GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics"],
    "memoryBarrier(gl_ScopeDevice, 0, 0, 0);": ["GL_KHR_memory_scope_semantics"],
    "coopMatPerElementNV(m, m, f);": ["GL_NV_cooperative_matrix2"],
    "OPERAND(a)": ["GL_NV_cooperative_matrix2"],
    "bfloat16_t x;": ["GL_EXT_bfloat16"],
    "dotPacked4x8EXT(a, b)": ["GL_EXT_integer_dot_product"],
    "gl_NumSubgroups": ["GL_KHR_shader_subgroup_basic"],
    "gl_SubgroupInvocationID": ["GL_KHR_shader_subgroup_basic"],
    "subgroupAdd(x)": ["GL_KHR_shader_subgroup_arithmetic"],
    "subgroupBroadcast(x, 0)": ["GL_KHR_shader_subgroup_ballot"],
    "subgroupClusteredAdd(x, 4)": ["GL_KHR_shader_subgroup_clustered"],
    "subgroupShuffleXor(x, 1)": ["GL_KHR_shader_subgroup_shuffle"],
    "subgroupAny(x)": ["GL_KHR_shader_subgroup_vote"],
}


@pytest.mark.parametrize("text", NEEDED)
def test_texts_that_need_one(text: str) -> None:
    assert extensions(f"void main() {{ {text} }}") == NEEDED[text]


@pytest.mark.parametrize("text", ["vk_atomic_add_f32(p, x);", "my_subgroupAdd(x)", "vk_from_bfloat16_t(x)", "coopMat"])
def test_texts_that_only_look_like_it(text: str) -> None:
    assert extensions(text) == []
