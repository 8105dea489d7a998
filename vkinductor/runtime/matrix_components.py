"""Where the components of a workgroup's matrix of sums lie, found by letting a kernel ask.

Vulkan leaves to the driver which elements of a cooperative matrix an invocation has. A kernel that asks for each of
them (coopMatPerElementNV) pays for it at every run; a trial asks once for a device, its driver and a shape, and the
disk store keeps the answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.errors import VulkanError
from vkinductor.runtime.pipeline import KernelSource

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device

KIND = "components"  # in the store


@dataclass(frozen=True)
class Sums:
    """A matrix of ``rows`` x ``columns`` float sums that ``threads`` invocations have, of products of operands of
    ``component`` (a GLSL type) in steps of ``depth`` terms."""

    rows: int
    columns: int
    depth: int
    threads: int
    component: str


@dataclass(frozen=True)
class Places:
    """Element ``row * columns + column`` of a matrix lies where the set bits of an invocation's number and of a
    component's count so much together: what each bit counts, the lowest first, all of them different powers of two."""

    columns: int
    invocation: tuple[int, ...]
    component: tuple[int, ...]


class MatrixComponents:
    """What is known of a device. Thread-safe: two threads that ask at once both get the answer."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[Sums, Places | None] = {}

    def places(self, sums: Sums) -> Places | None:
        """Those of ``sums``; None where they do not lie like that, or the device could not be asked.

        The first time on a device, runs a small kernel there and waits for it.
        """
        if sums not in self._known:
            self._known[sums] = self._stored(sums)
        return self._known[sums]

    def prefetch(self, sums: Sequence[Sums]) -> None:
        """Start compiling what `places` will run for those of ``sums`` that nothing is known of: a driver takes a
        second or two. Returns at once."""
        device = self._device
        for one in dict.fromkeys(sums):
            known = one in self._known or device.store.get(KIND, self._key(one)) is not None
            if not known and device.info.features.cooperative_matrix2_per_element:
                device.pipelines.prefetch(_source(one))

    def _stored(self, sums: Sums) -> Places | None:
        device = self._device
        if not device.info.features.cooperative_matrix2_per_element:
            return None
        key = self._key(sums)
        stored = device.store.get(KIND, key)
        if stored is not None:
            with contextlib.suppress(ValueError, TypeError):
                described = json.loads(stored)
                return None if described is None else Places(sums.columns, *map(tuple, described))
        try:
            found = ordered(sums, elements(device, sums))
        except VulkanError:
            return None
        kept = None if found is None else (found.invocation, found.component)
        device.store.put(KIND, key, json.dumps(kept).encode())
        return found

    def _key(self, sums: Sums) -> str:
        info = self._device.info
        parts = (info.uuid, info.driver_name, info.driver_version, info.driver_info, info.pipeline_uuid, trial(sums))
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def ordered(sums: Sums, found: Sequence[int]) -> Places | None:
    """The places of ``found``, the elements of each component of each invocation, where they lie as `Places` says."""
    each = sums.rows * sums.columns // sums.threads
    bits = [found[1 << b] for b in range(len(found).bit_length() - 1)]
    if 1 << len(bits) != len(found) or each & (each - 1) or sorted(bits) != [1 << b for b in range(len(bits))]:
        return None
    expected = [0]
    for count in bits:
        expected += [element + count for element in expected]
    of_components = each.bit_length() - 1
    lie = Places(sums.columns, tuple(bits[of_components:]), tuple(bits[:of_components]))
    return lie if list(found) == expected else None


_LAYOUT = ArgumentLayout((("zeros", "ptr"), ("found", "ptr"), ("terms", "i32")))


def elements(device: Device, sums: Sums) -> list[int]:
    """The element of each component of each invocation, one invocation's after another's.

    Raises:
        VulkanError: the kernel does not compile or run.
    """
    pipeline = device.pipelines.get(_source(sums))
    size, zeros = 4 * sums.rows * sums.columns, 2 * sums.depth * max(sums.rows, sums.columns)
    found = (ctypes.c_int32 * (size // 4))()
    address = device.memory.allocate(size + zeros)
    try:
        touched = ((address, size + zeros),)
        device.stream.fill(address, size + zeros, 0)
        arguments = pipeline.pack(address + size, address, sums.depth)
        device.stream.dispatch(pipeline, (1, 1, 1), arguments, touched, touched)
        device.stream.download(ctypes.addressof(found), address, size)
    finally:
        device.memory.free(address)
    return list(found)


def _source(sums: Sums) -> KernelSource:
    return KernelSource("matrix_components", trial(sums), _LAYOUT)


_TRIAL_EXTENSIONS = (
    *EXTENSIONS,
    "GL_EXT_control_flow_attributes",
    "GL_EXT_shader_explicit_arithmetic_types",
    "GL_KHR_cooperative_matrix",
    "GL_KHR_memory_scope_semantics",
    "GL_KHR_shader_subgroup_basic",
    "GL_NV_cooperative_matrix2",
)


def trial(sums: Sums) -> str:
    """A product of zeros as kernels compute one, to whose sums each element adds where it is."""
    m, n, k, component = sums.rows, sums.columns, sums.depth, sums.component
    names = (*_TRIAL_EXTENSIONS, *(["GL_EXT_bfloat16"] if component == "bfloat16_t" else []))
    extensions = "".join(f"#extension {name} : require\n" for name in names)
    each = m * n // sums.threads
    return f"""#version 460
{extensions}#pragma use_vulkan_memory_model
layout(local_size_x = {sums.threads}) in;
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Zeros {{ {component} d[]; }};
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Found {{ int d[]; }};
{_LAYOUT.glsl(True)}
float where(const in uint32_t row, const in uint32_t column, const in float value) {{
    return value + float(int(row) * {n} + int(column));
}}

void main() {{
    Zeros zeros = Zeros(ARG.zeros);
    Found found = Found(ARG.found);
    tensorLayoutNV<2> of_a = setTensorLayoutDimensionNV(createTensorLayoutNV(2), {m}, ARG.terms);
    tensorLayoutNV<2> of_b = setTensorLayoutDimensionNV(createTensorLayoutNV(2), ARG.terms, {n});
    coopmat<float, gl_ScopeWorkgroup, {m}, {n}, gl_MatrixUseAccumulator> sums;
    sums = coopmat<float, gl_ScopeWorkgroup, {m}, {n}, gl_MatrixUseAccumulator>(0);
    for (int k = 0; k < ARG.terms; k += {k}) {{
        coopmat<{component}, gl_ScopeWorkgroup, {m}, {k}, gl_MatrixUseA> a;
        coopmat<{component}, gl_ScopeWorkgroup, {k}, {n}, gl_MatrixUseB> b;
        coopMatLoadTensorNV(a, zeros.d, 0, sliceTensorLayoutNV(of_a, 0, {m}, k, {k}));
        coopMatLoadTensorNV(b, zeros.d, 0, sliceTensorLayoutNV(of_b, k, {k}, 0, {n}));
        sums = coopMatMulAdd(a, b, sums);
    }}
    coopMatPerElementNV(sums, sums, where);
    // As many components and such subgroups as there should be, else zeros are left.
    const int local = int(gl_LocalInvocationID.x);
    if (sums.length() == {each} && int(gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID) == local) {{
        [[unroll]] for (int i = 0; i < {each}; ++i) {{
            found.d[local * {each} + i] = int(sums[i]);
        }}
    }}
}}
"""
