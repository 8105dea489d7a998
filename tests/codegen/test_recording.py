"""Recorded partitions: one submit a call, no allocation, results that stay, shapes, splits, threads, training."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from compiled import compiled, same
from torch._dynamo.utils import counters as dynamo_counters

import vkinductor
from vkinductor.codegen import heuristics, recording
from vkinductor.runtime.replay.recording import MAX_BINDINGS
from vkinductor.runtime.submissions import SLOTS


def counted(f, *args):
    """The result of a call and what it took."""
    before = vkinductor.stats()
    result = f(*args)
    after = vkinductor.stats()
    return result, {name: after[name] - before[name] for name in after if name != "fallbacks"}


def chain(x, w):
    for _ in range(3):
        x = torch.softmax(x @ w, -1)
        x = x - x.mean(0, keepdim=True)
    return x, x[1:]


def device(*shape):
    return torch.randn(*shape, device="vulkan")


def test_one_replay_and_no_allocation():
    x, w = device(32, 16), device(16, 16)
    f = compiled(chain)
    with torch.no_grad():
        _, first = counted(f, x, w)
        assert first["replays"] == 0
        for i in range(8):
            result, took = counted(f, x, w)
            assert took["replays"] == 1
            assert took["submits"] <= 1  # a few calls may share one
            assert took["dispatches"] == first["dispatches"]
            assert took["kernels_compiled"] == 0 or i == 0
            if i > 2:
                assert took["allocations"] == took["recordings"] == 0
        same(result, chain(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)


def test_results_that_are_kept_are_not_overwritten():
    w = device(16, 16)
    f = compiled(chain)
    kept = []
    for _ in range(10):
        x = device(8, 16)
        kept.append((f(x, w)[1], chain(x.cpu(), w.cpu())[1]))
    for got, want in kept:
        same(got, want, rtol=1e-4, atol=1e-6)
    del kept, got
    gc.collect()
    _, took = counted(f, x, w)
    assert took["allocations"] == 0


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_pressure_during_a_call_leaves_its_results_their_memory(kept):
    from vkinductor.runtime import context

    memory = context.get().memory
    x, w = device(32, 16), device(16, 16)
    f = compiled(lambda x, w: tuple(part for i in range(4) for part in chain(x + i, w)[:1]))
    for _ in range(4):
        f(x, w)
    held = [f(x, w) for _ in range(kept)]
    recording.trim()
    with memory.short():
        held += [f(x, w) for _ in range(3)]
    memory.on_pressure()
    places = [result.data_ptr() for results in held for result in results]
    assert len(set(places)) == len(places)
    taken = [device(32, 16) for _ in range(40)]
    assert not {t.data_ptr() for t in taken} & set(places)


def test_recording_can_be_switched_off():
    x, w = device(8, 16), device(16, 16)
    f = torch.compile(chain, backend="vulkan", options={"recording": False})
    for _ in range(4):
        _, took = counted(f, x, w)
        assert took["replays"] == took["recordings"] == 0
    with pytest.raises(ValueError, match="recording"):
        torch.compile(lambda x: x + 1, backend="vulkan", options={"recording": "yes"})(x)


def test_inputs_that_move_and_weights_that_change():
    f = compiled(chain)
    w = device(16, 16)
    hold = []
    for i in range(12):
        x = device(8, 16)
        hold.append(device(8, 16 * i + 1))  # so that addresses differ
        if i % 3 == 2:
            w = device(16, 16)
        if i % 4 == 3:
            w.mul_(0.5)
        same(f(x, w), chain(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)


def test_a_length_that_grows_records_a_few_times_only():
    f = compiled(chain, dynamic=True)
    w = device(16, 16)
    vkinductor.reset_stats()
    for n in range(2, 130):
        x = device(n, 16)
        same(f(x, w), chain(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)
    stats = vkinductor.stats()
    assert stats["replays"] >= 126  # length 2 has a graph of its own: x[1:] is one row
    assert stats["recordings"] <= 18  # each doubling of the length may take up to three instances


def test_two_hundred_shapes_compile_once_and_hold_bounded_memory():
    from vkinductor.codegen import recording

    torch._dynamo.reset()
    dynamo_counters.clear()
    earlier = set(recording._partitions)
    f = compiled(chain, dynamic=True)
    w = device(16, 16)
    shapes = [*range(3, 203), *range(3, 203)]  # of two rows or fewer, x[1:] is another program
    vkinductor.reset_stats()
    for n in shapes:
        x = device(n, 16)
        same(f(x, w), chain(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)
    stats = vkinductor.stats()
    assert dynamo_counters["stats"]["unique_graphs"] == 1
    assert stats["replays"] >= len(shapes) - 3
    assert stats["recordings"] <= 3 * 8  # up to three instances for each doubling of the length
    partitions = [p for p in recording._partitions if p not in earlier and len(p._entries) > 32]
    assert len(partitions) == 1
    ((kept, pools),) = partitions[0]._recordings
    assert len(partitions[0]._entries) == len(kept.bindings) == MAX_BINDINGS
    largest = 202 * 16 * 4
    assert kept.scratch_bytes <= 2 * 3 * largest  # what lives at a time, twice the room since it outgrew its place
    assert sum(len(binding.image) for binding in kept.bindings.values()) <= MAX_BINDINGS * kept.program.argument_bytes
    assert len(kept.program._instances) <= kept.program.FEWEST_INSTANCES
    assert all(len(pool) <= 3 for pool in pools)  # a result lives until the next one is there


def test_kernels_for_other_sizes_are_made_before_they_are_needed():
    from vkinductor.runtime import context
    from vkinductor.runtime.compile_threads import THREADS

    torch._dynamo.reset()
    f = compiled(chain, dynamic=True)
    w = device(16, 16)
    for n in (23, 31):  # compile, record
        f(device(n, 16), w)
    threads = context.get().pipelines.threads
    idle = threading.Barrier(THREADS + 1)
    for _ in range(THREADS):
        threads.submit(lambda: idle.wait(60))
    idle.wait(60)
    before = vkinductor.stats()["kernels_compiled"], len(context.get().pipelines._handles)
    for n in (40, 17, 61):
        f(device(n, 16), w)
    assert (vkinductor.stats()["kernels_compiled"], len(context.get().pipelines._handles)) == before


def test_cache_updates_in_place():
    def step(x, cache, where):
        cache = cache.index_copy_(0, where, x[None])
        scores = torch.softmax(cache @ x, 0)
        return torch.tanh(scores @ cache) + x.softmax(-1)

    f = compiled(step)
    cache, mine = torch.zeros(32, 16), torch.zeros(32, 16, device="vulkan")
    x = torch.randn(16)
    y = x.to("vulkan")
    positions = [torch.tensor([i]) for i in range(20)]
    for where in positions:
        x = step(x, cache, where)
        y, took = counted(f, y, mine, where.to("vulkan"))
        same((y, mine), (x, cache), rtol=1e-4, atol=1e-5)
    assert took["replays"] == 1


def test_written_inputs_that_overlap_others_are_not_replayed():
    def f(x, y):
        x.mul_(2)
        s = torch.softmax(x, -1)
        x.add_(s - s.mean(0, keepdim=True))
        return x.sum(0) + y.sum(0)

    g = compiled(f)
    for _ in range(3):
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        a, b = x.to("vulkan"), y.to("vulkan")
        same((g(a, b), a), (f(x, y), x), rtol=1e-4, atol=1e-5)
    base = torch.randn(16, 8)
    mine = base.to("vulkan")
    same(g(mine[:8], mine[8:]), f(base[:8], base[8:]), rtol=1e-4, atol=1e-5)
    same(mine, base, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_fallback_splits_a_program():
    def f(x):
        y = torch.softmax(x * 2, -1)
        y = torch.matrix_exp(y - y.mean(0, keepdim=True))
        z = torch.softmax(y * 2, -1)
        return torch.cat([z - z.mean(0, keepdim=True), y * 3, x[:1]])

    g = compiled(f)
    for _ in range(5):
        x = torch.randn(8, 8)
        got, took = counted(g, x.to("vulkan"))
        same(got, f(x), rtol=1e-4, atol=1e-5)
    assert took["replays"] == 2
    assert vkinductor.stats()["fallbacks"]["aten.linalg_matrix_exp.default"] == 5


def test_random_numbers_differ_between_replays():
    def f(x):
        y = torch.nn.functional.dropout(x, 0.5, training=True)
        return torch.softmax(y, -1), y - y.mean(0, keepdim=True)

    g = compiled(f)
    x = torch.ones(64, 64, device="vulkan")
    results = [g(x)[1].cpu() for _ in range(6)]
    assert all(not torch.equal(a, b) for i, a in enumerate(results) for b in results[:i])

    def runs():
        torch.manual_seed(7)
        return [g(x)[0].cpu() for _ in range(3)]

    for a, b in zip(runs(), runs(), strict=True):
        assert torch.equal(a, b)


def test_training_replays_both_directions():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))
    ours = copy.deepcopy(model).to("vulkan")
    f = compiled(ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, ours)]
    for _ in range(8):
        x = torch.randn(8, 16)
        loss = model(x).square().mean()
        loss.backward()
        before = vkinductor.stats()["replays"]
        mine = f(x.to("vulkan")).square().mean()
        mine.backward()
        replays = vkinductor.stats()["replays"] - before
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        same(mine, loss, rtol=1e-4, atol=1e-5)
    assert replays == 2


def test_two_forwards_before_their_backwards():
    """What is saved for the first backward must survive the second forward."""
    w = torch.randn(16, 16, requires_grad=True)
    mine = w.detach().to("vulkan").requires_grad_()

    def f(x, w):
        y = torch.tanh(x @ w)
        return (y - y.mean(0, keepdim=True)).softmax(-1)

    g = compiled(f)
    for _ in range(4):
        xs = [torch.randn(8, 16) for _ in range(3)]
        losses = [f(x, w).square().sum() for x in xs]
        ours = [g(x.to("vulkan"), mine).square().sum() for x in xs]
        for a, b in zip(reversed(losses), reversed(ours), strict=True):
            a.backward()
            b.backward()
        same(mine.grad, w.grad, rtol=1e-3, atol=1e-5)
        w.grad = mine.grad = None


def test_threads_share_a_program():
    f = compiled(chain)
    w = device(16, 16)
    with torch.no_grad():  # as in the threads: torch 2.11 cannot compile one function on several at once
        for _ in range(3):
            f(device(8, 16), w)

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(8, 16, generator=generator)
            with torch.no_grad():
                same(f(x.to("vulkan"), w), chain(x, w.cpu()), rtol=1e-4, atol=1e-6)

    before = vkinductor.stats()["replays"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert vkinductor.stats()["replays"] > before


def test_no_python_for_each_kernel():
    """A replay of 60 kernels calls as many Python and C functions as one of 6."""

    def steps(n):
        def f(x):
            for _ in range(n // 2):
                x = x - x.mean(0, keepdim=True)
                x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
            return x

        return f

    def calls(n):
        torch._dynamo.reset()
        f, x = compiled(steps(n)), device(16, 16)
        found = 0

        def count(frame, event, argument):
            nonlocal found
            found += event in ("call", "c_call")

        with torch.no_grad():
            for _ in range(2 * SLOTS):  # all slots of the stream have been used
                f(x)
            vkinductor.synchronize()
            sys.setprofile(count)
            try:
                y, took = counted(f, x)
            finally:
                sys.setprofile(None)
        assert took["dispatches"] == n
        assert took["replays"] == took["submits"] == 1
        del y
        return found

    assert calls(60) == calls(20)  # fewer may share a submit


@pytest.mark.parametrize("training", [False, True])
def test_nested_regions_are_recorded(training):
    """Inductor writes such a region once, as a function that each of its calls runs."""

    def layer(x, w):
        return torch.softmax(x @ w, -1) * 2 - (x @ w).mean(0, keepdim=True)

    def stack(layer):
        def f(x, weights):
            for w in weights:
                x = layer(x, w)
            return x

        return f

    f, plain = compiled(stack(torch.compiler.nested_compile_region(layer))), stack(layer)
    weights = [torch.randn(12, 12) for _ in range(3)]
    ours = [w.to("vulkan").requires_grad_(training) for w in weights]
    theirs = [w.clone().requires_grad_(training) for w in weights]
    for i in range(4):
        x = torch.randn(12, 12)
        result, took = counted(f, x.to("vulkan"), ours)
        expected = plain(x, theirs)
        same(result, expected, rtol=1e-4, atol=1e-5)
        if i:
            assert took["replays"] == 3
        if training:
            before = vkinductor.stats()["replays"]
            result.square().mean().backward()
            expected.square().mean().backward()
            if i:
                assert vkinductor.stats()["replays"] - before >= 3
    for a, b in zip(ours, theirs, strict=True):
        if training:
            same(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_graphs_share_one_scratch_range():
    from vkinductor.runtime import context

    shared = context.get().stream.shared
    before = shared.scratch_bytes  # of graphs of other tests
    w = device(64, 64)
    functions = [compiled(lambda x, w, i=i: chain(x * i, w)) for i in range(1, 4)]
    for _ in range(4):
        for i, f in enumerate(functions, 1):
            x = device(32 * i, 64)
            same(f(x, w), chain(x.cpu() * i, w.cpu()), rtol=1e-4, atol=1e-6)
    assert 0 < shared.scratch_bytes <= max(before, 1 << 20)


def test_memory_of_results_is_given_back():
    x, w = device(512, 64), device(64, 64)
    f = compiled(chain)
    kept = [f(x, w) for _ in range(20)]
    assert vkinductor.memory_stats()["allocated_bytes"] > 20 * 512 * 64 * 4
    last = kept.pop()
    del kept
    torch.vulkan.empty_cache()
    assert vkinductor.memory_stats()["allocated_bytes"] < 6 * 512 * 64 * 4 + (2 << 20)
    torch._dynamo.reset()
    del f
    gc.collect()
    same(last, chain(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)


def test_a_device_that_is_opened_anew_records_anew():
    from vkinductor.runtime import context

    for _ in range(2):
        f = compiled(chain)
        x, w = torch.randn(8, 16), torch.randn(16, 16)
        before = vkinductor.stats()["replays"]
        for _ in range(3):
            same(f(x.to("vulkan"), w.to("vulkan")), chain(x, w), rtol=1e-4, atol=1e-6)
        assert vkinductor.stats()["replays"] == before + 2
        del f
        torch._dynamo.reset()
        gc.collect()
        context.reset()


@pytest.mark.usefixtures("one_kernel")
def test_a_program_runs_as_one_kernel():
    def f(x, y):
        z = torch.nn.functional.layer_norm(x + y, (x.shape[-1],))
        w = torch.softmax(z.flip(0) + x, -1)
        return torch.softmax(w.flip(1) * 3 + z, -1) + w.flip(0), z.sum(-1)

    x, y = torch.randn(48, 64), torch.randn(48, 64)
    expected = f(x, y)
    with heuristics.override(workgroup=64):
        compiled = torch.compile(f, backend="vulkan", options={"persistent": True})
        x, y = x.to("vulkan"), y.to("vulkan")
        for _ in range(3):
            results, counts = counted(compiled, x, y)
            torch.testing.assert_close([r.cpu() for r in results], [*expected])
    assert counts["dispatches"] == 1
    assert counts["barriers"] == 1  # before every program


def test_a_driver_that_loses_invocations_runs_kernels_one_by_one(monkeypatch):
    from vkinductor.runtime.drivers import Driver
    from vkinductor.runtime.replay import persistent

    monkeypatch.setattr(persistent, "driver_of", lambda info: Driver(loses_invocations=True))
    x, w = device(32, 16), device(16, 16)
    before = recording.recordings()
    f = torch.compile(chain, backend="vulkan", options={"persistent": True})
    for _ in range(3):
        same(f(x, w), chain(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)
    (made,) = (r for r in recording.recordings() if r not in before)
    assert "loses invocations" in made.refused


@pytest.mark.usefixtures("one_kernel")
def test_kernels_that_cannot_be_one_run_one_by_one():
    def f(x, w):
        return torch.softmax(torch.softmax(x.flip(0) + x, -1) @ w.t(), -1)

    x, w = torch.randn(96, 64), torch.randn(96, 64)
    expected = f(x, w)
    compiled = torch.compile(f, backend="vulkan", options={"persistent": True})
    x, w = x.to("vulkan"), w.to("vulkan")
    for _ in range(3):
        result, counts = counted(compiled, x, w)
        torch.testing.assert_close(result.cpu(), expected)
    assert counts["dispatches"] > 1
    refused = [r.refused for r in recording.recordings() if r.refused]
    assert any("different sizes" in reason for reason in refused)
