"""Programs whose dispatches wait for each other: translation, order, and what happens when a wait is in vain."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.errors import ProgramFailedError
from vkinductor.runtime.pipeline import KernelSource
from vkinductor.runtime.replay import chained as chained_
from vkinductor.runtime.replay.chained import (
    AT_BARRIER,
    AT_BEGINNING,
    WHERE_READY,
    ChainedProgram,
    NotChained,
    chained,
    pays,
    places,
    read_early,
)
from vkinductor.runtime.replay.program import Program, Step
from vkinductor.runtime.replay.recording import Recording

N = 1000
SUM = ArgumentLayout((("x", "ptr"), ("weights", "ptr"), ("y", "ptr"), ("n", "u32")))


def weighted(kernels) -> KernelSource:
    """y[i] = x[i] * weights[i], read first. A workgroup more than there are elements for leaves at once."""
    body = """    if (i >= ARG.n) return;
    const float weight = F(ARG.weights).v[i];
    READY_AFTER(ARG.weights)
    F(ARG.y).v[i] = F(ARG.x).v[i] * weight;"""
    text = kernels.shader(SUM, body, more="#define READY_AFTER(read)")
    return KernelSource("weighted", text, SUM)


def step(device, source: KernelSource, values: tuple, groups: int, reads=(), writes=(), early=False) -> Step:
    pipeline = device.pipelines.get(source)
    pushed = pipeline.pack(*values)
    return Step(pipeline, pushed, 0, (groups, 1, 1), 0, tuple(reads), tuple(writes), early=early)


@pytest.fixture
def memory(kernels, device):
    """x, weights, and two more places."""
    random = np.random.default_rng(0)
    x, weights = random.standard_normal(N, np.float32), random.standard_normal(N, np.float32)
    addresses = [
        kernels.upload(device, x),
        kernels.upload(device, weights),
        *(device.memory.allocate(4 * N) for _ in "yz"),
    ]
    yield x, weights, addresses
    for address in addresses:
        device.memory.free(address)


def steps_of(kernels, device, addresses) -> list[Step]:
    """y = 2 x + 1; z = y * weights; y = 3 z; z = y * weights: each waits for the one before; some have spare groups."""
    x, weights, y, z = addresses
    scale, both, size = kernels.scale_add(), weighted(kernels), 4 * N
    return [
        step(device, scale, (N, x, y, 2.0, 1.0), 16, [(x, size)], [(y, size)]),
        step(device, both, (y, weights, z, N), 20, [(y, size), (weights, size)], [(z, size)], early=True),
        step(device, scale, (N, z, y, 3.0, 0.0), 16, [(z, size)], [(y, size)]),
        step(device, both, (y, weights, z, N), 17, [(y, size), (weights, size)], [(z, size)], early=True),
    ]


def run(device, program: Program, bound: str = "once") -> None:
    with device.stream.lock:
        instance = program.instance(bound, ())
        instance.bound, instance.addresses = bound, ()
        device.stream.replay(instance, "test", program.dispatches, program.barriers)
    device.synchronize()


@pytest.mark.parametrize("most", [1 << 30, 6 * N, 0])
@pytest.mark.parametrize("pushed", [256, 40])
def test_results_are_right_with_some_barriers_or_none(kernels, device, memory, monkeypatch, most, pushed):
    """Steps that read more than `most` wait at a barrier; arguments that do not fit beside the chain lie in memory."""
    monkeypatch.setattr(chained_, "MOST_BYTES", most)
    limits = dataclasses.replace(device.info.limits, max_push_constants=pushed)
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, limits=limits))
    x, weights, addresses = memory
    program = ChainedProgram(device, steps_of(kernels, device, addresses), 0, 4)
    assert (program.dispatches, program.barriers) == (4, {1 << 30: 0, 6 * N: 2, 0: 3}[most])
    for _ in range(3):
        kernels.run_scale_add(device, addresses[0], addresses[3], N, 0.0, -1.0)
        run(device, program)
        y = 3 * ((2 * x + 1) * weights)
        np.testing.assert_array_equal(kernels.download(device, addresses[3], N), y * weights)
    program.retire()


def test_a_wait_in_vain_is_an_error_once(kernels, device, memory, monkeypatch):
    """The next call says so; those after it are as before."""
    monkeypatch.setattr(chained_, "_MAIN_TEXT", chained_._MAIN_TEXT.replace("2097152u", "100u"))
    x, weights, addresses = memory
    program = ChainedProgram(device, steps_of(kernels, device, addresses), 0, 4)
    right = program._places[2].expected
    program._places[2].expected = right + 1
    run(device, program)
    program._places[2].expected = right
    with pytest.raises(ProgramFailedError, match=r"waited in vain.*'chained': False"):
        run(device, program)
    program._instances.clear()
    run(device, program)
    run(device, program)
    expected = 3 * ((2 * x + 1) * weights) * weights
    np.testing.assert_array_equal(kernels.download(device, addresses[3], N), expected)
    program.retire()


# Orders.


def order(*manners: int, masks: str = "") -> list[tuple[int, bool, int]]:
    """(expected, counted, total) of steps of 10 workgroups with these manners; those of `masks` that are 0 wait for
    nothing that the one before did not wait for."""
    read = {AT_BARRIER: 1, AT_BEGINNING: 0, WHERE_READY: 0}
    steps = [
        Step(None, b"", 0, (10, 1, 1), 0, ((0, chained_.MOST_BYTES + 1 if read[m] else 4),), (), early=m == WHERE_READY)  # type: ignore[arg-type]
        for m in manners
    ]
    made = places(steps, [int(m) for m in masks or "0" + "1" * (len(manners) - 1)])
    return [(p.expected, p.counted, p.total) for p in made]


B, W, E = AT_BARRIER, AT_BEGINNING, WHERE_READY


def test_each_waits_for_all_before_it():
    assert order(B, E, W, E) == [(0, True, 0), (10, True, 0), (20, True, 0), (30, True, 40)]


def test_between_barriers_only_what_is_waited_for_counts():
    """The second barrier's step is waited for; the first one's and the last one's are not."""
    assert order(B, B, B, E, B, B) == [
        (0, False, 0), (0, False, 0), (0, True, 0), (10, True, 20), (0, False, 0), (0, False, 0),
    ]  # fmt: skip


def test_what_depends_on_nothing_new_waits_as_the_one_before():
    """The third step needs what the second one needed; the last of the two sets the counter back."""
    assert order(B, E, E, masks="010") == [(0, True, 0), (10, True, 30), (10, True, 30)]
    assert order(B, B, E, masks="010") == [(0, False, 0), (0, False, 0), (0, False, 0)]
    assert order(B, E, E, E, masks="0011") == [(0, True, 0), (0, True, 0), (20, True, 0), (30, True, 40)]


def test_a_step_of_unknown_size_lies_between_two_barriers():
    steps = [Step(None, b"", 0, (10, 1, 1), 0, ((0, 4),), ()) for _ in range(6)]  # type: ignore[arg-type]
    steps[2] = dataclasses.replace(steps[2], groups=None)
    made = places(steps, [0, 1, 1, 0, 1, 1])
    assert [(p.manner, p.expected, p.counted) for p in made] == [
        (B, 0, True), (W, 10, True), (B, 0, False), (B, 0, False), (B, 0, True), (W, 30, True),
    ]  # fmt: skip


def test_few_workgroups_may_read_much():
    steps = [Step(None, b"", 0, (n, 1, 1), 0, ((0, 1 << 30),), (), early=True) for n in (1, 16, 17)]  # type: ignore[arg-type]
    assert [p.manner for p in places(steps, [0, 1, 1], units=4)] == [B, E, B]


def test_nothing_waits_where_all_have_barriers():
    assert order(B, B, B) == [(0, False, 0)] * 3


# Translation.


def test_a_kernel_says_what_it_reads_early(kernels):
    assert read_early(weighted(kernels)) == {"weights"}
    assert read_early(kernels.scale_add()) == frozenset()


def test_a_kernel_waits_where_it_says_or_at_its_beginning(kernels, device):
    source = weighted(kernels)
    at_once, later = chained(source), chained(source, early=True)
    assert "{\n    vk_chain_wait();\n    vk_body();" in at_once.glsl
    assert "vk_chain_wait();\n    F(ARG.y)" in later.glsl
    assert "{\n    vk_body();" in later.glsl
    assert chained(kernels.scale_add(), early=True).glsl == chained(kernels.scale_add()).glsl
    for made in (at_once, later, chained(source.with_argument_block(), early=True)):
        device.pipelines.get(made)


def test_a_text_of_another_kind_is_refused(kernels):
    source = kernels.scale_add()
    with pytest.raises(NotChained, match="no main"):
        chained(dataclasses.replace(source, glsl=source.glsl.replace("void main(", "void other(")))
    with pytest.raises(NotChained, match="as its layout does"):
        chained(dataclasses.replace(source, glsl=source.glsl.replace("float scale;", "float  scale;")))


# What is refused, and where it is the default.


def test_programs_that_a_watchdog_cuts_are_refused(kernels, device, memory, monkeypatch):
    monkeypatch.setattr(device.stream, "program_dispatches", 2)
    with pytest.raises(NotChained, match="watchdog"):
        ChainedProgram(device, steps_of(kernels, device, memory[2]), 0, 4)


def test_a_device_is_tried_once(device, monkeypatch):
    monkeypatch.setattr(chained_, "_in_order", {})
    monkeypatch.setattr(chained_, "_TRIAL", ((4, 64), (1, 128)))
    assert chained_._begins_in_order(device, 4)
    before = device.stream.submissions.submitted
    assert chained_._begins_in_order(device, 4)
    assert device.stream.submissions.submitted == before


def test_it_is_the_default_for_many_short_dispatches_by_nvidias_driver(device):
    card = dataclasses.replace(device.info, kind="discrete", driver_name="NVIDIA")
    short = [SimpleNamespace(groups=(100, 1, 1))] * 8
    assert pays(card, short, 132)
    assert not pays(card, short[:7], 132)
    assert not pays(card, [SimpleNamespace(groups=(100, 100, 1))] * 8, 132)
    assert not pays(dataclasses.replace(card, driver_name="NVK"), short, 132)
    assert not pays(device.info, short, 132)


# Recordings.


def captured(kernels, device, inline: bool = True):
    """Six dispatches, x to y through temporaries: those between read and write only the program's own memory."""
    stream = device.stream
    with stream.captures.on(stream) as capture:
        x, y = capture.resource(4 * N), capture.resource(4 * N)
        at = [x, *(capture.resource(4 * N) for _ in range(5)), y]
        for source, target in itertools.pairwise(at):
            kernels.run_scale_add(device, source, target, N, 2.0, 1.0, inline)
    return capture


@pytest.mark.parametrize("form", ["chained", "dispatches"])
@pytest.mark.parametrize("inline", [True, False])
def test_replays_with_other_memory(kernels, device, form, inline):
    """Also of kernels whose arguments are too many for push constants."""
    capture = captured(kernels, device, inline)
    recording = Recording(device, capture, 1, (1,), form)
    binding = recording.bind("a", capture)
    assert recording.refused is None
    assert isinstance(recording.program, ChainedProgram) == (form == "chained")
    for number in range(4):
        x = np.arange(N, dtype=np.float32) + number
        source, target = kernels.upload(device, x), device.memory.allocate(4 * N)
        assert recording.replay(binding, (source, target))
        np.testing.assert_array_equal(kernels.download(device, target, N), 64 * x + 63)
