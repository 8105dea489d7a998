"""Tuning on a device: what is kept and found again, and that no wrong or failing candidate is taken."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import copies, on_device, same
from tuning_cases import bucket, told

import vkinductor
from vkinductor.codegen import tuning
from vkinductor.codegen.eager.program import in_clean_thread
from vkinductor.codegen.gemm import choose
from vkinductor.codegen.gemm.tiles import DirectTile, RegisterTile, Tile
from vkinductor.codegen.tuning import build, clock, select, tuner
from vkinductor.codegen.tuning.gemm import GEMM, problem_of
from vkinductor.codegen.tuning.results import KIND, Result, Results, Row, results
from vkinductor.codegen.tuning.select import Times
from vkinductor.codegen.tuning.tuner import NothingWorksError, tune
from vkinductor.codegen.tuning.workspace import Runner, Workspace
from vkinductor.device.registry import registry
from vkinductor.runtime.errors import DeviceLostError
from vkinductor.runtime.replay.capture import Capture

pytestmark = pytest.mark.usefixtures("empty_store")

SMALL = DirectTile(tm=1, tn=1, blocks=16)
MIDDLE = DirectTile(tm=2, tn=2, blocks=16)
LARGE = DirectTile(tm=4, tn=4, blocks=16)
TILES: tuple[Tile, ...] = (SMALL, MIDDLE, LARGE)


@dataclasses.dataclass(frozen=True)
class WrongTile(DirectTile):
    """Leaves out a part of the sum."""

    def values(self, info: Any, problem: Any) -> dict[str, Any]:
        return {**super().values(info, problem), "k": "(3)"}


@dataclasses.dataclass(frozen=True)
class BrokenTile(DirectTile):
    """Is no GLSL."""

    def values(self, info: Any, problem: Any) -> dict[str, Any]:
        return {**super().values(info, problem), "zero": "no_such_thing"}


@dataclasses.dataclass(frozen=True)
class UnloweredTile(DirectTile):
    """Fails before there is a kernel."""

    def values(self, info: Any, problem: Any) -> dict[str, Any]:
        raise ZeroDivisionError("its plan fails")


@contextmanager
def offering(*tiles: Tile) -> Iterator[None]:
    """Matrix products have these candidates, the first by the heuristic."""
    original = choose._ordered
    choose._ordered = lambda info, problem: list(tiles)  # type: ignore[assignment]
    try:
        yield
    finally:
        choose._ordered = original


@contextmanager
def taking(monkeypatch: pytest.MonkeyPatch, **times: float) -> Iterator[None]:
    """Candidates take so long, by their ``tm``, whatever the device says."""

    def sample(self: Runner, clock: Any) -> Times:
        self.waiting.run()
        groups = {label_groups(tile): tile.tm for tile in TILES}
        time = times[f"tm{groups[self.built.launches[0].groups]}"]
        return Times(time, time)

    def label_groups(tile: DirectTile) -> tuple[int, int, int]:
        return (int(tile.groups(1, 32, 32)), 1, 1)

    with monkeypatch.context() as patched:
        patched.setattr(Runner, "sample", sample)
        yield


def small_problem() -> Any:
    return problem_of(1, 32, 32, 32, torch.float32)


# Results.


def result(choice: str = "b", **sizes: int) -> Result:
    rows = (Row("a", "ok", 2.0), Row("b", "ok", 1.0), Row("c", "wrong", detail="all of it"))
    return Result("gemm", bucket(**(sizes or {"m": 8})), choice, "a", rows, 10, 20)


def test_results_are_found_again() -> None:
    device = registry.open().runtime
    first = Results(device)
    first.add(GEMM, result(m=8))
    first.add(GEMM, result(m=16))
    again = Results(device)
    assert again.find(GEMM, bucket(m=8)) == result(m=8)
    assert again.find(GEMM, bucket(m=9)) is None
    assert [b for b, _ in again.index(GEMM).values()] == [bucket(m=8), bucket(m=16)]
    assert again.fingerprint([GEMM]) == first.fingerprint([GEMM]) != ""


def test_two_processes_add_to_one_index() -> None:
    device = registry.open().runtime
    one, other = Results(device), Results(device)
    assert not one.index(GEMM)
    assert not other.index(GEMM)
    one.add(GEMM, result(m=8))
    other.add(GEMM, result(m=16))
    assert len(Results(device).index(GEMM)) == 2


@pytest.mark.parametrize("damage", ["bytes", "json", "shape", "choice", "another"])
def test_a_damaged_result_is_a_miss(damage: str) -> None:
    device = registry.open().runtime
    known = Results(device)
    known.add(GEMM, result(m=8))
    key = known._key(GEMM, str(bucket(m=8)))
    good = json.loads(device.store.get(KIND, key) or b"")
    if damage == "bytes":
        path = device.store._path(KIND, key)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        bad: Any = {
            "json": "{",
            "shape": [1, 2],
            "choice": {**good, "choice": "c"},
            "another": {**good, "bucket": {"kind": "float16 nn", "sizes": []}},
        }[damage]
        device.store.put(KIND, key, (bad if isinstance(bad, str) else json.dumps(bad)).encode())
    assert Results(device).find(GEMM, bucket(m=8)) is None
    device.store.put("tuning_index", known._key(GEMM, "index"), b"[{}]")
    assert not Results(device).index(GEMM)


# Measuring, on the device.


def test_a_real_problem() -> None:
    with offering(*TILES):
        found = tune(GEMM, problem_of(1, 33, 40, 17, torch.float32), seconds=20)
    assert found is not None
    assert found.complete
    assert {row.status for row in found.rows} == {"ok"}
    assert found.baseline == GEMM.label(SMALL)
    assert sorted(row.label for row in found.rows) == sorted(map(GEMM.label, TILES))
    assert vkinductor.stats()["timings"] == 3
    assert not vkinductor.stats()["fallbacks"]


def test_a_candidate_of_several_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in two parts, which another kernel adds: hopeless for so small a product, says the model."""
    monkeypatch.setattr(choose, "estimate", lambda info, problem, tile: 1.0)
    tile = RegisterTile(32, 32, 16, 4, 4)
    with offering(tile, dataclasses.replace(tile, splits=2)):
        found = tune(GEMM, problem_of(1, 40, 33, 128, torch.float16), seconds=20)
    assert found is not None
    assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}


def test_a_candidate_with_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a constant of its graph. What cannot be timed is not replaced where it is the heuristic's choice."""
    monkeypatch.setattr(choose, "estimate", lambda info, problem, tile: 1.0)
    plain = RegisterTile(16, 32, 8, 4, 4)
    tile = dataclasses.replace(plain, streams=5)
    problem = problem_of(1, 40, 70, 64, torch.float32)
    with offering(tile, plain):
        found = tune(GEMM, problem, seconds=20)
        assert found is not None
        assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}
        monkeypatch.setattr(Capture, "keep", lambda self, address, nbytes: None)
        with pytest.raises(NothingWorksError, match=r"streams=5 .* cannot be timed"):
            tune(GEMM, problem, seconds=20)
    with offering(plain, tile), told() as warned:
        found = tune(GEMM, problem, seconds=20)
    assert found is not None
    assert (found.choice, len(warned)) == (GEMM.label(plain), 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.float64], ids=str)
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_every_dtype_and_layout(dtype: torch.dtype, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with offering(SMALL, LARGE), monkeypatch.context() as patched:
        patched.setattr(clock.Clock, "sample", lambda self, runner: 1.0)
        found = tune(GEMM, problem_of(2, 17, 9, 65, dtype, layout), seconds=20)
    assert found is not None
    assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}


def test_calls_wait_or_are_independent() -> None:
    """Those that wait do so for nothing else's sake: neither results, nor intermediates, nor counters are shared."""
    counters = vkinductor.stats
    tiles = (
        DirectTile(tm=2, tn=2, blocks=16),
        RegisterTile(32, 32, 16, 4, 4, splits=2),
        RegisterTile(16, 32, 8, 4, 4, streams=5),
    )
    problem = problem_of(1, 40, 70, 128, torch.float32)
    operation = GEMM.operation(problem)
    device = registry.open().runtime
    workspace = Workspace(device, operation)
    try:
        for tile in tiles:

            def made(tile: Tile = tile) -> Runner:
                program = build.lower(operation, lambda: GEMM.forced(tile))
                return Runner(build.captured(program, operation.operands), workspace)

            runner = in_clean_thread(made)
            inside = len(runner.built.launches) - 1  # each part is behind the one before
            for calls, barriers in ((runner.waiting, 8 * (1 + inside)), (runner.independent, None)):
                device.stream.synchronize()
                before = counters()["barriers"]
                calls.run(8)
                taken = counters()["barriers"] - before
                assert taken == barriers if barriers is not None else taken <= 8 * inside
            assert operation.check is not None
            assert operation.check(workspace.values, runner.results()[0]) is None
    finally:
        device.stream.synchronize()
        workspace.close()


def test_candidates_are_lowered_between_those_that_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that time does not run out over candidates that nobody gets to."""

    class Inline(ThreadPoolExecutor):
        def submit(self, function: Any, /, *args: Any, **named: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(function(*args, **named))
            return done

    monkeypatch.setattr(tuner, "ThreadPoolExecutor", Inline)
    monkeypatch.setattr(select, "LOOKS", 1)
    monkeypatch.setattr(select, "ROUNDS", 0)
    lines: list[str] = []
    with offering(*TILES):
        tune(GEMM, small_problem(), seconds=20, listener=lambda done, total, what: lines.append(what))
    assert lines == [line for tile in TILES for line in (f"compiling {GEMM.label(tile)}", GEMM.label(tile))]


def test_times_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    with offering(*TILES):
        with taking(monkeypatch, tm1=10.0, tm2=7.0, tm4=9.0):
            found = tune(GEMM, small_problem(), seconds=20)
        assert found is not None
        assert found.choice == GEMM.label(MIDDLE)
        with taking(monkeypatch, tm1=10.0, tm2=9.9, tm4=9.9):
            found = tune(GEMM, small_problem(), seconds=20)
        assert found is not None
        assert found.choice == GEMM.label(SMALL)


def test_wrong_and_failing_candidates_are_dropped() -> None:
    bad = (WrongTile(tm=4, tn=4, blocks=16), BrokenTile(tm=4, tn=4, blocks=8), UnloweredTile(tm=4, tn=4, blocks=4))
    with offering(SMALL, *bad, MIDDLE):
        found = tune(GEMM, small_problem(), seconds=20)
    assert found is not None
    rows = {row.label.split()[0]: row for row in found.rows if row.status != "ok"}
    assert rows["wrong"].status == "wrong"
    assert "instead of" in rows["wrong"].detail
    assert rows["broken"].status == rows["unlowered"].status == "failed"
    assert "no_such_thing" in rows["broken"].detail or "ShaderCompileError" in rows["broken"].detail
    assert "its plan fails" in rows["unlowered"].detail
    assert found.choice in (GEMM.label(SMALL), GEMM.label(MIDDLE))


def test_a_heuristic_that_is_wrong_is_replaced() -> None:
    with offering(WrongTile(tm=4, tn=4, blocks=16), MIDDLE, SMALL):
        found = tune(GEMM, small_problem(), seconds=20)
    assert found is not None
    assert found.rows[0].status == "wrong"
    assert found.choice in (GEMM.label(SMALL), GEMM.label(MIDDLE))


def test_nothing_works() -> None:
    match = r"wrong .* instead of .*; broken .* failed"
    with (
        offering(WrongTile(tm=4, tn=4, blocks=16), BrokenTile(tm=4, tn=4)),
        pytest.raises(NothingWorksError, match=match),
    ):
        tune(GEMM, small_problem(), seconds=20)


def test_a_candidate_that_took_the_device_with_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Runner.results

    def lose(self: Runner) -> list[torch.Tensor]:
        if self.built.launches[0].groups == (int(MIDDLE.groups(1, 32, 32)), 1, 1):
            raise DeviceLostError("it is gone")
        return run(self)

    with offering(*TILES):
        with monkeypatch.context() as patched:
            patched.setattr(Runner, "results", lose)
            with pytest.raises(DeviceLostError):
                tune(GEMM, small_problem(), seconds=20)
        found = tune(GEMM, small_problem(), seconds=20)
        again = tune(GEMM, small_problem(), seconds=20)
    for one in (found, again):
        assert one is not None
        assert {row.label: row.status for row in one.rows} == {
            GEMM.label(SMALL): "ok",
            GEMM.label(MIDDLE): "failed",
            GEMM.label(LARGE): "ok",
        }


def test_a_mistake_of_the_tuner_fails_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(32, 32, 32)
    monkeypatch.setattr(type(GEMM), "operation", lambda self, problem: 1 / 0)
    with offering(*TILES), told() as warnings:
        same(torch.compile(f, backend="vulkan", mode="max-autotune")(*on_device(args)), f(*args), rtol=1e-4, atol=1e-4)
    assert "division by zero" in warnings[0]


def test_one_candidate_is_no_choice() -> None:
    with offering(SMALL):
        assert tune(GEMM, small_problem(), seconds=20) is None
    assert vkinductor.stats()["timings"] == 0


def test_candidates_that_come_too_late() -> None:
    ticks = iter(range(1000))
    with offering(*TILES), pytest.raises(NothingWorksError) as caught:
        tune(GEMM, small_problem(), seconds=1, now=lambda: next(ticks))
    assert caught.value.late


def test_memory_is_given_back() -> None:
    memory = registry.open().memory
    with offering(SMALL, LARGE):
        tune(GEMM, small_problem(), seconds=20)
        registry.open().ledger.sweep()
        before = memory.stats().allocated_bytes
        tune(GEMM, small_problem(), seconds=20)
    registry.open().ledger.sweep()
    assert memory.stats().allocated_bytes == before


# Inside torch.compile.


@contextmanager
def caches() -> Iterator[None]:
    """Inductor's graph cache, which these tests do without, switched on."""
    from torch._functorch import config as functorch
    from torch._inductor import config

    with config.patch(force_disable_caches=False), functorch.patch(enable_autograd_cache=False):
        yield


def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b) + 1


def arguments(*shape: int, **options: Any) -> list[torch.Tensor]:
    m, n, k = shape
    return [torch.randn(m, k, **options), torch.randn(k, n, **options)]


def test_max_autotune_tunes_forward_and_backward() -> None:
    args = arguments(32, 33, 34, requires_grad=True)
    moved = on_device(args)
    with offering(*TILES):
        y = torch.compile(f, backend="vulkan", mode="max-autotune")(*moved)
        y.sum().backward()
    want = copies(args)
    expected = f(*want)
    expected.sum().backward()
    same([y.detach(), *[t.grad for t in moved]], [expected.detach(), *[t.grad for t in want]], rtol=1e-4, atol=1e-4)
    assert vkinductor.stats()["timings"] == 9
    assert len(results().index(GEMM)) == 3
    torch._dynamo.reset()
    with offering(*TILES):
        torch.compile(f, backend="vulkan", mode="max-autotune-no-cudagraphs")(*moved).sum().backward()
    assert vkinductor.stats()["timings"] == 9


def test_default_mode_takes_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Tile] = []
    monkeypatch.setattr(choose, "tuned", lambda problem: taken.append(tuning.choice(GEMM, problem)))
    args = on_device(arguments(32, 32, 32))
    with offering(*TILES):
        torch.compile(f, backend="vulkan", dynamic=False)(*args)
        before = tuning.fingerprint()
        with taking(monkeypatch, tm1=10.0, tm2=7.0, tm4=9.0):
            found = tune(GEMM, small_problem(), seconds=20)
        assert found is not None
        results().add(GEMM, found)
        torch._dynamo.reset()
        torch.compile(f, backend="vulkan", dynamic=False)(*args)
        torch.compile(f, backend="vulkan", dynamic=False)(*on_device(arguments(32, 48, 20)))
        torch.compile(f, backend="vulkan", dynamic=False)(*on_device(arguments(32, 128, 32)))
    # The problem itself; a neighbour, with the same widths; none.
    assert taken == [None, MIDDLE, MIDDLE, None]
    assert tuning.fingerprint() != before == ""


def test_a_size_that_varies_is_tuned_once() -> None:
    with offering(SMALL, LARGE):
        g = torch.compile(f, backend="vulkan", mode="max-autotune", dynamic=True)
        for n in (20, 24, 30):
            args = arguments(n, n, n)
            same(g(*on_device(args)), f(*args), rtol=1e-4, atol=1e-4)
    assert vkinductor.stats()["timings"] == 2


def test_without_time_the_heuristic_decides() -> None:
    args = arguments(32, 32, 32)
    g = torch.compile(f, backend="vulkan", options={"tune": True, "tuning_seconds": 1e-9})
    with offering(*TILES), caches(), told() as warnings:
        same(g(*on_device(args)), f(*args), rtol=1e-4, atol=1e-4)
    assert vkinductor.stats()["timings"] == 0
    assert "no time was left for 1 of 1 problems (gemm float32 nn 4x4 batch=1 m=32 n=32 k=32)" in warnings[0]
    # A later compilation may have the time: this graph is not cached.
    before = vkinductor.cache_stats()["graph"]
    torch._dynamo.reset()
    with offering(*TILES), caches():
        g(*on_device(args))
    assert vkinductor.cache_stats()["graph"]["hits"] == before["hits"]


def test_nothing_is_tuned_while_something_traces() -> None:
    args = arguments(32, 32, 32)
    with offering(*TILES), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.PrivateUse1]):
        g = torch.compile(f, backend="vulkan", options={"tune": True})
        same(g(*on_device(args)), f(*args), rtol=1e-4, atol=1e-4)
    assert vkinductor.stats()["timings"] == 0


SCRIPT = r"""
import json, torch, vkinductor
from vkinductor.codegen.gemm import choose
from vkinductor.codegen.gemm.tiles import DirectTile
choose._ordered = lambda info, problem: [DirectTile(tm=t, tn=t, blocks=16) for t in (1, 2, 4)]
def f(a, b):
    return torch.relu(a @ b) + 1
a, b = torch.randn(32, 20), torch.randn(20, 33)
got = torch.compile(f, backend="vulkan", mode="max-autotune")(a, b)
torch.testing.assert_close(got, f(a, b), rtol=1e-4, atol=1e-4)
torch.testing.assert_close(torch.compile(lambda a, b: f(a, b) * 2, backend="vulkan")(a, b), f(a, b) * 2)
print(json.dumps({"timings": vkinductor.stats()["timings"], **vkinductor.cache_stats()}))
"""


def run(folder: Path) -> dict[str, Any]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "VKINDUCTOR_CACHE_DIR": str(folder / "vk")}
    root = str(Path(__file__).parents[2])
    env = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_second_process_times_nothing(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first["timings"] == 3
    assert (first["tuning"]["misses"], first["tuning"]["entries"]) == (1, 1)
    second = run(tmp_path)
    assert second["timings"] == 0
    assert second["graph"]["hits"] == 2
    assert second["graph"]["misses"] == 0


def test_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way in which a GPU is timed, wherever the queue has timestamps."""
    device = registry.open().runtime
    if not device.info.limits.timestamp_valid_bits:
        pytest.skip("no timestamps")
    monkeypatch.setattr(clock, "_HOLD_PASSES", 1000)
    monkeypatch.setattr(clock, "_WARM_UP_S", 0.01)
    seen: list[clock.Clock] = []
    prepare = clock.Clock._prepare

    def on_device(self: clock.Clock, runner: Any) -> None:
        self.on_device = True
        seen.append(self)
        prepare(self, runner)

    monkeypatch.setattr(clock.Clock, "_prepare", on_device)
    with offering(*TILES):
        found = tune(GEMM, problem_of(1, 64, 64, 64, torch.float32), seconds=20)
    assert found is not None
    assert len(seen) == 6
    assert all(row.time is not None and row.time > 1 for row in found.rows)
    assert all(row.independent is not None and row.independent > 1 for row in found.rows)
