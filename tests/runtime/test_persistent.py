"""Several kernels as one persistent kernel: translation, and programs that run so."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest

from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.barriers import TO_COMPUTE_AND_TRANSFER
from vkinductor.runtime.errors import ProgramFailedError
from vkinductor.runtime.hazards import AFTER_PROGRAM
from vkinductor.runtime.pipeline import KernelSource
from vkinductor.runtime.replay import persistent
from vkinductor.runtime.replay.combine import NotCombined, combined, common_size, is_free
from vkinductor.runtime.replay.persistent import PersistentProgram
from vkinductor.runtime.replay.program import Program, Step

pytestmark = pytest.mark.usefixtures("one_kernel")

N = 1000
# Of SPIR-V: a storage class, and a bit of an access.
PHYSICAL_STORAGE_BUFFER, NON_PRIVATE = 5349, 0x20
ROWS = ArgumentLayout((("x", "ptr"), ("y", "ptr"), ("n", "u32")))


def row_sums(kernels, local: int = 64) -> KernelSource:
    """y[r] = sum of x[r * n: (r + 1) * n] by a workgroup a row, through shared memory and a helper of its own."""
    body = f"""    uint row = gl_WorkGroupID.x;
    float sum = 0.0;
    for (uint k = gl_LocalInvocationID.x; k < ARG.n; k += {local}u) sum += twice(F(ARG.x).v[row * ARG.n + k]) * 0.5;
    part[gl_LocalInvocationID.x] = sum;
    barrier();
    for (uint s = {local // 2}u; s > 0u; s >>= 1) {{
        if (gl_LocalInvocationID.x < s) part[gl_LocalInvocationID.x] += part[gl_LocalInvocationID.x + s];
        barrier();
    }}
    if (gl_LocalInvocationID.x == 0u) F(ARG.y).v[row] = part[0];"""
    more = f"#define FACTOR 2.0\nshared float part[{local}];\nfloat twice(float x) {{ return x * FACTOR; }}\n"
    text = kernels.shader(ROWS, body, more="", local=local)
    head, tail = text.split("layout(local_size_x", 1)
    return KernelSource("row_sums", f"{head}{more}layout(local_size_x{tail}", ROWS)


def step(device, source: KernelSource, values: tuple, groups: int, reads=(), writes=()) -> Step:
    pipeline = device.pipelines.get(source)
    return Step(pipeline, pipeline.pack(*values), 0, (groups, 1, 1), 0, tuple(reads), tuple(writes))


def chain(kernels, device, x: int, y: int, z: int) -> list[Step]:
    """y = 2 x + 1; z[r] = sum over 100 of y; z = 3 z: two kernels at 64, every step waits for the one before."""
    scale = kernels.scale_add()
    return [
        step(device, scale, (N, x, y, 2.0, 1.0), 16, [(x, 4 * N)], [(y, 4 * N)]),
        step(device, row_sums(kernels), (y, z, 100), 10, [(y, 4 * N)], [(z, 40)]),
        step(device, scale, (10, z, z, 3.0, 0.0), 1, [(z, 40)], [(z, 40)]),
    ]


def run(device, program: Program) -> None:
    with device.stream.lock:
        instance = program.instance("once", ())
        instance.bound, instance.addresses = "once", ()
        device.stream.replay(instance, "test", program.dispatches, program.barriers)
    device.synchronize()  # the instance does not say what it writes


@pytest.mark.parametrize("fetched", [0, 1 << 20])
def test_a_chain_is_one_dispatch_and_right(kernels, device, monkeypatch, fetched):
    monkeypatch.setitem(persistent._FETCHED, device.info.kind, fetched)
    values = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x, y, z = kernels.upload(device, values), device.memory.allocate(4 * N), device.memory.allocate(40)
    steps = chain(kernels, device, x, y, z)
    steps[1] = dataclasses.replace(steps[1], constant=(x, 4 * N))
    program = PersistentProgram(device, steps, 0, units=4)
    assert (program.dispatches, program.barriers) == (1, 0)
    for _ in range(3):
        run(device, program)
    expected = 3 * (2 * values + 1).reshape(10, 100).sum(1)
    np.testing.assert_allclose(kernels.download(device, z, 10), expected, rtol=1e-4)
    program.retire()
    for address in (x, y, z):
        device.memory.free(address)


def test_invocations_that_know_nothing_of_each_other_run_at_any_size(kernels, device):
    """scale_add at 64 beside row sums of workgroups of 16: four turns of 16."""
    values = np.arange(N, dtype=np.float32)
    x, y, z = kernels.upload(device, values), device.memory.allocate(4 * N), device.memory.allocate(40)
    sums = row_sums(kernels, local=16)
    assert is_free(kernels.scale_add())
    assert not is_free(sums)
    steps = chain(kernels, device, x, y, z)
    steps[1] = step(device, sums, (y, z, 100), 10, [(y, 4 * N)], [(z, 40)])
    program = PersistentProgram(device, steps, 0, units=1)
    run(device, program)
    np.testing.assert_allclose(kernels.download(device, z, 10), 3 * (2 * values + 1).reshape(10, 100).sum(1), rtol=1e-4)
    program.retire()
    for address in (x, y, z):
        device.memory.free(address)


def test_sizes_that_differ_are_refused(kernels):
    with pytest.raises(NotCombined, match=r"different sizes: 16 .*64"):
        common_size([row_sums(kernels, 16), row_sums(kernels, 64)])


def test_kernels_with_constants_are_refused(kernels):
    with pytest.raises(NotCombined, match="specialization"):
        common_size([dataclasses.replace(kernels.scale_add(), specialization=((0, 1),))])


def test_global_names_of_kernels_are_kept_apart(kernels, device):
    sources = [row_sums(kernels), dataclasses.replace(row_sums(kernels), name="again"), kernels.scale_add()]
    made = combined([source.with_argument_block() for source in sources])
    for name in ("part", "twice", "FACTOR", "main", "Args"):
        assert f"{name}_k0" in made.glsl
        assert f"{name}_k1" in made.glsl or name == "FACTOR"
    device.pipelines.get(made)


def test_what_workgroups_hand_each_other_is_not_private(kernels, device):
    """Fences at a meeting order only such memory: SPIR-V says so of each access (OpLoad 61, OpStore 62)."""
    made = combined([row_sums(kernels).with_argument_block(), kernels.scale_add().with_argument_block()])
    code = device.compiler.compile(made.glsl, name="test", target=device.pipelines.target)
    words, at, seen = struct.unpack(f"<{len(code) // 4}I", code), 5, []
    kinds: dict[int, int] = {}  # pointer type -> storage class, then variable or value -> that of its type
    while at < len(words):
        count, operation = words[at] >> 16, words[at] & 0xFFFF
        operands = words[at + 1 : at + count]
        if operation == 32:
            kinds[operands[0]] = operands[1]
        elif operation in (65, 66, 67) or (operation == 59):
            kinds[operands[1]] = kinds[operands[0]]
        elif operation in (61, 62):
            pointer, extra = (operands[2], operands[3:]) if operation == 61 else (operands[0], operands[2:])
            if kinds.get(pointer) == PHYSICAL_STORAGE_BUFFER:
                seen.append(bool(extra and extra[0] & NON_PRIVATE))
        at += count
    # The two kernels' own loads and stores of floats.
    assert sum(seen) >= 4


def test_a_kernel_that_gave_up_is_an_error_at_the_next_call(kernels, device):
    values = np.ones(N, np.float32)
    x, y, z = kernels.upload(device, values), device.memory.allocate(4 * N), device.memory.allocate(40)
    program = PersistentProgram(device, chain(kernels, device, x, y, z), 0, units=1)
    run(device, program)
    with device.stream.lock:
        view = program.instance("once", ()).view
    at = program._control_at + persistent.FAILED_AT
    view[at : at + 4] = b"\1\0\0\0"
    with pytest.raises(ProgramFailedError, match="did not come to a barrier"):
        run(device, program)
    run(device, program)
    program.retire()
    for address in (x, y, z):
        device.memory.free(address)


def test_its_words_are_cleared_after_what_ran_before(kernels, device, monkeypatch):
    """A fill is its first command, and only a barrier of the primary command buffer orders that on NVIDIA."""
    x, y, z = kernels.upload(device, np.ones(N, np.float32)), device.memory.allocate(4 * N), device.memory.allocate(40)
    program = PersistentProgram(device, chain(kernels, device, x, y, z), 0, units=1)
    barriers, found = device.stream.barriers, []
    record = barriers.record

    def recorded(command, mask, to):
        found.append((command, mask, to))
        record(command, mask, to)

    monkeypatch.setattr(barriers, "record", recorded)
    run(device, program)
    program_own = program.instance("once", ()).commands[0]
    before = [(mask, to) for command, mask, to in found if command != program_own]
    assert before[0] == (AFTER_PROGRAM, TO_COMPUTE_AND_TRANSFER)
    program.retire()
    for address in (x, y, z):
        device.memory.free(address)
