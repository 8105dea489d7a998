"""Recorded programs below torch: memory plans, captures, and programs replayed with other memory and other sizes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from vkinductor.runtime.barriers import TO_HOST
from vkinductor.runtime.hazards import COMPUTE_READ, COMPUTE_WRITE, TRANSFER_READ, TRANSFER_WRITE
from vkinductor.runtime.replay.capture import CaptureRefused, lifetimes
from vkinductor.runtime.replay.plan import MemoryPlan, Value, check, plan
from vkinductor.runtime.replay.program import Program
from vkinductor.runtime.replay.recording import MAX_BINDINGS, Recording

N = 1000


# Memory plans.


def random_values(rng: random.Random) -> list[Value]:
    values = []
    for _ in range(rng.randint(0, 40)):
        first = rng.randint(0, 60)
        values.append(
            Value(rng.choice((0, 1, 255, 256, 257, 4096, rng.randint(1, 1 << 20))), first, first + rng.randint(0, 20))
        )
    return values


def test_plans_keep_apart_what_is_alive_together():
    rng = random.Random(0)
    for _ in range(1000):
        values = random_values(rng)
        made = plan(values)
        check(values, made)
        live = max((sum(v.nbytes for v in values if v.first <= at <= v.last) for at in range(90)), default=0)
        assert made.nbytes >= live
        assert made.nbytes <= sum((v.nbytes + 255) & -256 for v in values)


def test_a_chain_needs_two_places():
    values = [Value(1 << 20, i, i + 1) for i in range(50)]
    assert plan(values).nbytes == 2 << 20


@pytest.mark.parametrize(
    ("offsets", "nbytes", "message"),
    [((0, 256), 2048, "alive together"), ((0, 100), 2048, "not aligned"), ((0, 512), 512, "over the end")],
)
def test_the_checker_finds_faults(offsets, nbytes, message):
    with pytest.raises(AssertionError, match=message):
        check([Value(512, 0, 3), Value(512, 3, 4)], MemoryPlan(offsets, nbytes))


# Captures and programs.


def chain(kernels, device, x: int, y: int, temporary: list[int], n: int, bias: float) -> None:
    """y = ((x * 2 + bias) * 2 + bias) ... through the temporaries."""
    places = [x, *temporary, y]
    for source, target in itertools.pairwise(places):
        kernels.run_scale_add(device, source, target, n, 2.0, bias)


def captured(kernels, device, length: int, n: int, bias: float):
    """A capture of a chain of `length` dispatches: resource 0 is x, 1 is y, the others temporaries."""
    stream = device.stream
    with stream.captures.on(stream) as capture:
        x, y = capture.resource(4 * n), capture.resource(4 * n)
        chain(kernels, device, x, y, [capture.resource(4 * n) for _ in range(length - 1)], n, bias)
    return capture


def want(x: np.ndarray, length: int, bias: float) -> np.ndarray:
    for _ in range(length):
        x = x * np.float32(2) + np.float32(bias)
    return x


@pytest.fixture
def recording(kernels, device):
    capture = captured(kernels, device, 5, N, 1.0)
    return Recording(device, capture, 1, (1,)), capture


def test_replays_with_other_memory(kernels, device, counters, recording):
    recording, capture = recording
    binding = recording.bind("a", capture)
    counters.reset()
    for i in range(8):
        x = np.arange(N, dtype=np.float32) + i
        source, target = kernels.upload(device, x), device.memory.allocate(4 * N)
        before = counters.submits
        assert recording.replay(binding, (source, target))
        assert counters.submits == before
        np.testing.assert_array_equal(kernels.download(device, target, N), want(x, 5, 1.0))
    assert counters.replays == 8
    assert counters.dispatches == 40
    assert counters.submits == 8
    assert counters.recordings == 1
    assert recording.scratch_bytes == 2 * 4096


def test_many_replays_in_flight(kernels, device, recording):
    recording, capture = recording
    binding = recording.bind("a", capture)
    xs = [np.full(N, i, np.float32) for i in range(40)]
    sources = [kernels.upload(device, x) for x in xs]
    targets = [device.memory.allocate(4 * N) for _ in xs]
    for source, target in zip(sources, targets, strict=True):
        assert recording.replay(binding, (source, target))
    for x, target in zip(xs, targets, strict=True):
        np.testing.assert_array_equal(kernels.download(device, target, N), want(x, 5, 1.0))


@pytest.fixture
def waits(device, monkeypatch) -> list[int]:
    """Grows with each wait for work that had not finished."""
    found: list[int] = []
    submissions = device.stream.submissions
    wait = submissions.wait

    def counted(value: int) -> None:
        if value > submissions.completed():
            found.append(value)
        wait(value)

    monkeypatch.setattr(submissions, "wait", counted)
    return found


def test_a_host_that_is_ahead_shares_submits_and_does_not_wait(kernels, device, counters, recording, waits):
    recording, capture = recording
    binding = recording.bind("a", capture)
    x = kernels.upload(device, np.ones(N, np.float32))
    targets = [device.memory.allocate(4 * N) for _ in range(200)]
    device.synchronize()
    counters.reset()
    waits.clear()
    for target in targets:
        assert recording.replay(binding, (x, target))
    assert not waits
    assert counters.replays == 200
    assert counters.submits <= 200 * 5 // 16
    assert counters.recordings <= 200
    np.testing.assert_array_equal(kernels.download(device, targets[-1], N), want(np.ones(N, np.float32), 5, 1.0))


def test_as_many_in_flight_as_the_stream_has(kernels, device, recording, monkeypatch, waits):
    """Beyond that many, the oldest is waited for and filled in again."""
    recording, capture = recording
    monkeypatch.setattr(Program, "DISPATCHES_IN_FLIGHT", 20)
    binding = recording.bind("a", capture)
    assert recording.program.max_instances == 4
    sources = [kernels.upload(device, np.full(N, i, np.float32)) for i in range(24)]
    targets = [device.memory.allocate(4 * N) for _ in sources]
    for source, target in zip(sources, targets, strict=True):
        assert recording.replay(binding, (source, target))
    assert len(recording.program._instances) <= 4
    for i, target in enumerate(targets):
        np.testing.assert_array_equal(kernels.download(device, target, N), want(np.full(N, i, np.float32), 5, 1.0))


def test_what_is_bound_before_a_replay_is_bound_again(kernels, device, counters, recording):
    """The same kernel before and after a replay, in one submit."""
    recording, capture = recording
    binding = recording.bind("a", capture)
    x = np.arange(N, dtype=np.float32)
    source, target = kernels.upload(device, x), device.memory.allocate(4 * N)
    device.synchronize()
    counters.reset()
    kernels.run_scale_add(device, source, source, N, 1.0, 1.0)
    assert recording.replay(binding, (source, target))
    kernels.run_scale_add(device, target, target, N, 1.0, -1.0)
    np.testing.assert_array_equal(kernels.download(device, target, N), want(x + 1, 5, 1.0) - 1)
    assert counters.submits == 1


@pytest.fixture
def commands(device, monkeypatch) -> list[str]:
    """What the primary command buffers that are submitted from now on hold: "barrier M" and "program"."""
    stream, found = device.stream, []
    held: dict[int, list[str]] = {}
    begin, submit, run = stream._vk.vkBeginCommandBuffer, stream._vk.vkQueueSubmit, stream._vk.vkCmdExecuteCommands
    record = stream.barriers.record

    def number(command) -> int:
        return int(device.ffi.cast("uintptr_t", command))

    def begun(command, info):
        held[number(command)] = []
        return begin(command, info)

    def recorded(command, mask, to):
        if to != TO_HOST:
            held.setdefault(number(command), []).append(f"barrier {mask}")
        record(command, mask, to)

    def ran(command, *args):
        held.setdefault(number(command), []).append("program")
        run(command, *args)

    def submitted(queue, count, info, fence):
        for at in range(info.commandBufferCount):
            found.extend(held.get(number(info.pCommandBuffers[at]), []))
        return submit(queue, count, info, fence)

    monkeypatch.setattr(stream.barriers, "record", recorded)
    monkeypatch.setattr(stream._vk, "vkBeginCommandBuffer", begun)
    monkeypatch.setattr(stream._vk, "vkCmdExecuteCommands", ran)
    monkeypatch.setattr(stream._vk, "vkQueueSubmit", submitted)
    return found


def test_the_primary_command_buffer_waits_before_a_program(kernels, device, recording, commands):
    """A barrier at the beginning of a secondary one does not order it with dispatches and copies on NVIDIA."""
    recording, capture = recording
    binding = recording.bind("a", capture)
    source, other, target = (kernels.upload(device, np.ones(N, np.float32)) for _ in range(3))

    def replay():
        assert recording.replay(binding, (source, target))

    def before(*steps) -> list[str]:
        device.synchronize()
        commands.clear()
        for step in steps:
            step()
        device.synchronize()
        return commands[: len(commands) - commands[::-1].index("program")]

    def dispatch():
        kernels.run_scale_add(device, other, source, N, 1.0, 1.0)

    def copy():
        device.stream._copy(source, other, 4 * N)

    dispatched, copied = COMPUTE_WRITE | COMPUTE_READ, TRANSFER_WRITE | TRANSFER_READ
    waits = [f"barrier {dispatched}", "program"]
    assert before(replay) == waits
    assert before(dispatch, replay) == waits
    assert before(replay, replay) == waits * 2
    assert before(replay, dispatch, replay) == [*waits, f"barrier {dispatched}", *waits]
    assert before(copy, replay) == [f"barrier {dispatched | copied}", "program"]


def test_programs_alone_are_submitted_as_they_are(kernels, device, recording, monkeypatch):
    """Nothing is recorded for a replay that has run like this before."""
    recording, capture = recording
    binding = recording.bind("a", capture)
    source, target = (kernels.upload(device, np.ones(N, np.float32)) for _ in range(2))
    for _ in range(2):
        device.synchronize()
        assert recording.replay(binding, (source, target))
    device.synchronize()
    for name in ("vkBeginCommandBuffer", "vkCmdExecuteCommands", "vkResetCommandPool"):
        monkeypatch.setattr(device.stream._vk, name, None)
    for _ in range(8):
        assert recording.replay(binding, (source, target))
    device.synchronize()
    monkeypatch.undo()
    np.testing.assert_array_equal(kernels.download(device, target, N), want(np.ones(N, np.float32), 5, 1.0))


def test_in_order_with_other_commands(kernels, device, recording):
    """A copy and a dispatch before, a dispatch and a fill after a replay, on the same memory."""
    recording, capture = recording
    binding = recording.bind("a", capture)
    x = np.arange(N, dtype=np.float32)
    source, other, target = kernels.upload(device, x), device.memory.allocate(4 * N), device.memory.allocate(4 * N)
    for _ in range(3):
        device.stream.copy(other, source, 4 * N)
        kernels.run_scale_add(device, other, other, N, 1.0, 1.0)
        assert recording.replay(binding, (other, target))
        kernels.run_scale_add(device, target, target, N, 1.0, -1.0)
        device.stream.fill(other, 4 * N, 0)
        np.testing.assert_array_equal(kernels.download(device, target, N), want(x + 1, 5, 1.0) - 1)
        assert not kernels.download(device, other, N).any()


def test_sizes_and_numbers_fill_in_the_same_program(kernels, device, counters, recording):
    recording, capture = recording
    recording.bind(N, capture)
    counters.reset()
    for n in (1, 3, 500, 999, 700, 64, 2000, 2500, 3900):
        again = captured(kernels, device, 5, n, float(n))
        assert recording.fits(again.launches, again.sizes)
        binding = recording.bind(n, again)
        x = np.arange(n, dtype=np.float32)
        source, target = kernels.upload(device, x), device.memory.allocate(4 * n)
        assert recording.replay(binding, (source, target))
        np.testing.assert_array_equal(kernels.download(device, target, n), want(x, 5, float(n)))
    # Once for the first change, once for outgrown memory; up to three instances of each.
    assert counters.recordings <= 6


def test_bindings_are_bounded(kernels, device, recording):
    recording, _ = recording
    for n in range(1, 3 * MAX_BINDINGS):
        recording.bind(n, captured(kernels, device, 5, n, 0.0))
    assert len(recording.bindings) <= MAX_BINDINGS


def test_other_kernels_do_not_fit(kernels, device, recording):
    recording, _ = recording
    other = captured(kernels, device, 4, N, 1.0)
    assert not recording.fits(other.launches, other.sizes)


def test_what_cannot_be_captured(kernels, device):
    real = device.memory.allocate(4096)
    stream = device.stream
    with stream.captures.on(stream) as capture:
        x = capture.resource(4096)
        for refused in (
            lambda: stream.copy(x, real, 64),
            lambda: stream.fill(x, 64, 0),
            lambda: stream.upload(x, 0, 64),
            lambda: stream.download(0, x, 64),
            lambda: stream.synchronize(),
            lambda: kernels.run_scale_add(device, real, x, 10, 1.0, 0.0),
            lambda: capture.resource(1 << 50),
        ):
            with pytest.raises(CaptureRefused):
                refused()
    device.memory.free(real)


def test_another_thread_is_not_captured(kernels, device):
    import threading

    stream = device.stream
    x = kernels.upload(device, np.ones(N, np.float32))
    with stream.captures.on(stream) as capture:
        thread = threading.Thread(target=kernels.run_scale_add, args=(device, x, x, N, 3.0, 0.0))
        thread.start()
        thread.join()
    assert not capture.launches
    assert (kernels.download(device, x, N) == 3).all()


def test_lifetimes(kernels, device):
    capture = captured(kernels, device, 3, N, 0.0)
    assert lifetimes(capture.launches, 4) == [(0, 0), (2, 2), (0, 1), (1, 2)]


def test_a_scratch_range_that_has_moved_is_noticed(kernels, device, recording):
    from vkinductor.runtime.replay.resources import release_scratch

    recording, capture = recording
    binding = recording.bind("a", capture)
    x = np.arange(N, dtype=np.float32)
    source, target = kernels.upload(device, x), device.memory.allocate(4 * N)
    assert recording.replay(binding, (source, target))
    release_scratch(device)
    assert not recording.replay(binding, (source, target))
    assert recording.replay(recording.bind("a", capture), (source, target))
    np.testing.assert_array_equal(kernels.download(device, target, N), want(x, 5, 1.0))


def test_a_scratch_range_that_has_become_smaller_is_noticed(kernels, device, recording, monkeypatch):
    recording, capture = recording
    binding = recording.bind("a", capture)
    x = np.arange(N, dtype=np.float32)
    source, target = kernels.upload(device, x), device.memory.allocate(4 * N)
    shared = device.stream.shared
    monkeypatch.setattr(shared, "scratch_bytes", recording.scratch_bytes - 1)  # released, made anew at the same address
    assert not recording.replay(binding, (source, target))
    assert recording.program is None


def test_argument_memory_is_given_back(kernels, device, recording):
    recording, capture = recording
    x = kernels.upload(device, np.ones(N, np.float32))
    for _ in range(300):
        binding = recording.bind("a", capture)
        assert recording.replay(binding, (x, x))
        recording.discard()
    assert len(device.stream.shared._blocks) == 1


def test_where_a_watchdog_bites_a_program_is_cut(kernels, device, counters, recording, monkeypatch):
    recording, capture = recording
    monkeypatch.setattr(device.stream, "program_dispatches", 2)
    binding = recording.bind("a", capture)
    counters.reset()
    for i in range(4):
        x = np.arange(N, dtype=np.float32) + i
        source, target = kernels.upload(device, x), device.memory.allocate(4 * N)
        assert recording.replay(binding, (source, target))
        np.testing.assert_array_equal(kernels.download(device, target, N), want(x, 5, 1.0))
    assert counters.submits >= 12
