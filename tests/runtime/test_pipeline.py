"""Pipelines: which kernels are the same, specialization, subgroup sizes, errors, caches."""

from __future__ import annotations

import dataclasses
import os
import threading

import numpy as np
import pytest

from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.errors import ShaderCompileError, UnsupportedError
from vkinductor.runtime.pipeline import KernelSource, _pack_constant

OUT = ArgumentLayout((("dst", "ptr"),))


def source(kernels, body: str, name: str = "test", more: str = "", **options) -> KernelSource:
    return KernelSource(name, kernels.shader(OUT, body, more=more), OUT, **options)


def run(device, kernels, kernel: KernelSource, count: int = 1) -> np.ndarray:
    pipeline = device.pipelines.get(kernel)
    address = device.memory.allocate(4 * count)
    device.stream.fill(address, 4 * count, 0)
    device.stream.dispatch(pipeline, (1, 1, 1), pipeline.pack(address), (), ((address, 4 * count),))
    got = kernels.download(device, address, count)
    device.memory.free(address)
    return got


def test_the_same_source_is_compiled_once(device, kernels, counters):
    one = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 17.5;")
    pipeline = device.pipelines.get(one)
    compiled = counters.kernels_compiled
    assert device.pipelines.get(dataclasses.replace(one)) is pipeline
    assert counters.kernels_compiled == compiled <= 1


def test_spirv_is_taken_from_the_disk_after_a_restart(fresh_device, kernels, counters):
    kernel = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 18.5;")
    device = fresh_device()
    counters.reset()
    assert run(device, kernels, kernel) == 18.5
    assert counters.kernels_compiled <= 1
    device = fresh_device()
    assert run(device, kernels, kernel) == 18.5
    assert counters.kernels_compiled == 0


def test_specialization_constants_of_every_type(device, kernels):
    more = """
layout(constant_id = 0) const int A = 0;
layout(constant_id = 1) const float B = 0.0;
layout(constant_id = 2) const bool C = false;
layout(constant_id = 7) const uint D = 0;
"""
    body = "    if (i == 0) F(ARG.dst).v[0] = float(A) + B + (C ? 100.0 : 0.0) + float(D);"
    plain = source(kernels, body, more=more)
    assert run(device, kernels, plain) == 0
    special = dataclasses.replace(plain, specialization=((0, -3), (1, 0.5), (2, True), (7, 4_000_000_000)))
    assert run(device, kernels, special) == np.float32(4_000_000_000 - 3 + 0.5 + 100)
    assert device.pipelines.get(special) is not device.pipelines.get(plain)


def test_local_size_can_be_specialized(device, kernels):
    glsl = source(kernels, "    atomicAdd(F(ARG.dst).v[0], 1.0);").glsl
    if not device.info.features.float32_atomic_add:
        pytest.skip("no float atomics")
    glsl = glsl.replace("local_size_x = 64", "local_size_x_id = 3")
    glsl = glsl.replace("#version 460", "#version 460\n#extension GL_EXT_shader_atomic_float : require")
    kernel = KernelSource("local", glsl, OUT, specialization=((3, 48),))
    assert run(device, kernels, kernel) == 48


@pytest.mark.parametrize(
    ("value", "packed"),
    [(True, b"\1\0\0\0"), (-1, b"\xff" * 4), (1 << 31, b"\0\0\0\x80"), (1 << 40, b"\0" * 5 + b"\1\0\0")],
)
def test_packing_of_constants(value, packed):
    assert _pack_constant(value) == packed


def test_a_constant_beyond_64_bits_is_refused():
    with pytest.raises(UnsupportedError):
        _pack_constant(1 << 64)


def test_a_compile_error_shows_the_numbered_source(device, kernels):
    kernel = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = undeclared_thing;", name="broken_kernel")
    with pytest.raises(ShaderCompileError) as caught:
        device.pipelines.get(kernel)
    text = str(caught.value)
    assert "broken_kernel" in text
    assert "undeclared_thing" in text
    lines = kernel.glsl.splitlines()
    number = next(i for i, line in enumerate(lines, 1) if "undeclared_thing" in line)
    assert any(str(number) in line and "undeclared_thing" in line for line in text.splitlines())
    good = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 3.0;")
    assert run(device, kernels, good) == 3.0  # no dead end


def test_too_many_inline_arguments_are_refused_by_name(device, kernels):
    layout = ArgumentLayout(tuple((f"p{i}", "ptr") for i in range(device.info.limits.max_push_constants // 8 + 1)))
    kernel = KernelSource("wide", "", layout)
    with pytest.raises(UnsupportedError, match=r"wide.*inline_args=False"):
        device.pipelines.get(kernel)


def test_a_required_subgroup_size(device, kernels):
    limits, features = device.info.limits, device.info.features
    more = "#extension GL_KHR_shader_subgroup_basic : require"
    kernel = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = float(gl_SubgroupSize);", more=more)
    size = limits.subgroup_size_max
    if features.subgroup_size_control:
        wanted = dataclasses.replace(kernel, subgroup_size=size, full_subgroups=features.compute_full_subgroups)
        assert run(device, kernels, wanted) == size
    for impossible in (2 * limits.subgroup_size_max, 3):
        with pytest.raises(UnsupportedError, match=f"subgroups of {impossible}"):
            device.pipelines.get(dataclasses.replace(kernel, subgroup_size=impossible))


def test_a_kernel_without_arguments(device):
    glsl = "#version 460\nlayout(local_size_x = 1) in;\nvoid main() {}\n"
    pipeline = device.pipelines.get(KernelSource("empty", glsl, ArgumentLayout(())))
    device.stream.dispatch(pipeline, (1, 1, 1), pipeline.pack(), (), ())
    device.stream.synchronize()


def test_the_same_kernel_under_two_names_is_compiled_once(device, kernels, counters):
    one = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 17.25;", name="one")
    two = dataclasses.replace(one, name="two")
    first, second = device.pipelines.get(one), device.pipelines.get(two)
    assert counters.kernels_compiled <= 1
    assert first.handle == second.handle
    assert (first.source.name, second.source.name) == ("one", "two")
    assert run(device, kernels, two) == 17.25


def test_a_prefetched_kernel_is_there(fresh_device, kernels, counters, tmp_path):
    device = fresh_device(VKINDUCTOR_CACHE_DIR=str(tmp_path))
    wanted = [source(kernels, f"    if (i == 0) F(ARG.dst).v[0] = {i}.5;", name=f"k{i}") for i in range(8)]
    for kernel in wanted * 3:
        device.pipelines.prefetch(kernel)
    assert [run(device, kernels, kernel) for kernel in wanted] == [i + 0.5 for i in range(8)]
    assert counters.kernels_compiled == 8


def test_an_error_of_a_prefetched_kernel_is_raised_when_it_is_asked_for(device, kernels):
    bad = source(kernels, "    undeclared = 1;", name="bad_kernel")
    wide = KernelSource("wide", "", ArgumentLayout(tuple((f"p{i}", "ptr") for i in range(100))))
    for _ in range(2):
        device.pipelines.prefetch(bad)
        device.pipelines.prefetch(wide)
        with pytest.raises(ShaderCompileError, match="bad_kernel"):
            device.pipelines.get(bad)
        with pytest.raises(ShaderCompileError, match="other_name"):
            device.pipelines.get(dataclasses.replace(bad, name="other_name"))
        with pytest.raises(UnsupportedError, match="wide"):
            device.pipelines.get(wide)


def compile_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("vkinductor-compile")]


def test_threads_do_not_outlive_the_device(fresh_device, kernels, tmp_path):
    from vkinductor.runtime import context

    for round_ in range(5):
        device = fresh_device(VKINDUCTOR_CACHE_DIR=str(tmp_path / str(round_)))
        pipelines = device.pipelines
        for i in range(40):  # more than are compiled before the device closes
            pipelines.prefetch(source(kernels, f"    if (i == 0) F(ARG.dst).v[0] = {i}.25;"))
        assert compile_threads()
        context.reset()
        assert not compile_threads()
        assert len(pipelines._handles) == 0
        pipelines.prefetch(source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 0.25;"))
        assert not compile_threads()


FORK = """
import os, sys
from vkinductor.runtime import context
from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.errors import VulkanError
from vkinductor.runtime.pipeline import KernelSource
device = context.get()
for i in range(60):
    glsl = f"#version 460\\nlayout(local_size_x = 1) in;\\nshared float x[{i + 1}];\\nvoid main() {{ x[0] = 1.0; }}\\n"
    device.pipelines.prefetch(KernelSource("k", glsl, ArgumentLayout(())))
child = os.fork()
try:
    context.get()
except VulkanError:
    sys.exit(0 if child == 0 else 3)
if child == 0:
    sys.exit(4)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_while_kernels_are_compiled(kernels, tmp_path):
    for number in range(3):
        done = kernels.python(FORK, VKINDUCTOR_CACHE_DIR=str(tmp_path / str(number)))
        assert done.returncode == 0, done.stderr


def test_different_kernels_are_compiled_at_the_same_time(device, kernels):
    """No lock is held while one compiles: a thread in the middle of one does not stop another."""
    inside, go_on = threading.Event(), threading.Event()
    slow = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 31.5;", name="slow")
    compile_ = device.compiler.compile

    def wait(glsl, **options):
        if options["name"] == "slow":
            inside.set()
            assert go_on.wait(30)
        return compile_(glsl, **options)

    device.compiler.compile = wait
    try:
        device.pipelines.prefetch(slow)
        assert inside.wait(30)
        assert run(device, kernels, source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 32.5;")) == 32.5
        go_on.set()
        assert run(device, kernels, slow) == 31.5
    finally:
        go_on.set()
        del device.compiler.compile


def test_threads_ask_for_the_same_kernel(device, kernels, counters):
    kernel = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 99.25;")
    got = []
    threads = [threading.Thread(target=lambda: got.append(device.pipelines.get(kernel))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, got))) == 1
    assert counters.kernels_compiled <= 1


def test_the_driver_cache_is_saved_and_loaded(fresh_device, kernels):
    device = fresh_device()
    run(device, kernels, source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 5.0;"))
    device.pipelines.save()
    key = device.pipelines._blob_key()
    blob = device.store.get("pipeline", key)
    if blob is None:
        pytest.skip("this driver keeps nothing in its pipeline cache")
    assert device.pipelines._fits(blob)
    assert not device.pipelines._fits(blob[:20])
    assert not device.pipelines._fits(blob[:16] + b"\0" * 16 + blob[32:])  # the UUID of another driver
    device = fresh_device()
    assert run(device, kernels, source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 5.0;")) == 5.0


def test_another_compiler_is_another_key(fresh_device, kernels, counters, monkeypatch, tmp_path):
    kernel = source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 41.5;")
    device = fresh_device(VKINDUCTOR_CACHE_DIR=str(tmp_path))
    device.pipelines.spirv(kernel)
    device.pipelines.spirv(kernel)
    assert counters.kernels_compiled == 1
    monkeypatch.setattr(device.compiler, "version", "0.0.1")
    device.pipelines.spirv(kernel)
    assert counters.kernels_compiled == 2
    device.pipelines.spirv(dataclasses.replace(kernel, glsl=kernel.glsl.replace("41.5", "42.5")))
    assert counters.kernels_compiled == 3


@pytest.mark.parametrize(
    ("field", "value"), [("driver_version", 12345), ("uuid", "0" * 32), ("driver_uuid", "0" * 32), ("device_id", 12345)]
)
def test_another_driver_or_device_has_another_driver_cache(device, monkeypatch, field, value):
    key = device.pipelines._blob_key()
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, **{field: value}))
    assert device.pipelines._blob_key() != key


def test_a_broken_driver_cache_is_ignored(fresh_device, kernels):
    device = fresh_device()
    device.store.put("pipeline", device.pipelines._blob_key(), b"\x20\0\0\0" + b"junk" * 40)
    assert run(device, kernels, source(kernels, "    if (i == 0) F(ARG.dst).v[0] = 6.0;")) == 6.0
