"""Tuning of the number of parts of a reduction: the candidates, measuring, and that a graph takes what was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compiled import on_device, same

import vkinductor
from vkinductor.codegen import heuristics, splits
from vkinductor.codegen.splits import Problem
from vkinductor.codegen.tuning.results import Result, Row, results
from vkinductor.codegen.tuning.splits import SPLITS
from vkinductor.codegen.tuning.tuner import tune
from vkinductor.device.registry import registry


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Reductions are cut, and an empty store takes the results."""
    from vkinductor.runtime.store import DiskStore

    device = registry.open().runtime
    monkeypatch.setitem(device.__dict__, "store", DiskStore(tmp_path / "store"))
    registry.tuning = None
    with heuristics.override(reads_dominate=1, fewest_with_sums=256):
        yield
    registry.tuning = None


def dispatches(f: object, x: torch.Tensor, **options: object) -> int:
    """Launches of a call, whose result has to be right."""
    torch._dynamo.reset()
    moved = on_device([x])
    compiled = torch.compile(f, backend="vulkan", options=options, dynamic=False)  # type: ignore[call-overload]
    compiled(*moved)
    vkinductor.reset_stats()
    same(compiled(*moved), f(x), rtol=1e-3, atol=1e-3)  # type: ignore[operator]
    return int(vkinductor.stats()["dispatches"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_every_candidate_is_right(as_on_a_gpu: None, kind: str, dtype: torch.dtype) -> None:
    problem = Problem(kind, dtype, 2, 1 << 14, 4) if kind == "rows" else Problem(kind, dtype, 8200, 64, 4)
    found = tune(SPLITS, problem, seconds=60)
    assert found is not None
    assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}
    assert found.baseline == "parts=4"
    assert len(found.rows) > 3


def test_elements_that_are_summed_together(as_on_a_gpu: None) -> None:
    problem = Problem("rows", torch.float32, 1, 1 << 12, 4, reads=3)
    found = tune(SPLITS, problem, seconds=60)
    assert found is not None
    assert {(row.status, row.detail) for row in found.rows} == {("ok", "")}
    assert str(found.bucket) == "float32 rows of 3 results=1 length=4096"
    assert found.nbytes == 4 * (3 * 4096 + 1)


def test_a_sum_of_what_is_gathered_is_no_plain_sum(as_on_a_gpu: None) -> None:
    """Of 32768 losses a plain sum says that one workgroup is best, which takes 12 us more on an H200."""
    x, places = torch.randn(1 << 12), torch.randint(1 << 12, (1 << 15,))
    asked: list[Problem] = []

    def ask(make: object) -> None:
        asked.append(make())  # type: ignore[operator]

    original, splits.tuned = splits.tuned, ask
    try:
        with heuristics.override(single_row=1024):
            dispatches(lambda places: places.float().sum(), places)
            assert asked
            asked.clear()
            torch._dynamo.reset()
            moved = on_device([x, places])
            got = torch.compile(lambda x, places: x[places].sum(), backend="vulkan", dynamic=False)(*moved)
    finally:
        splits.tuned = original
    same(got, x[places].sum(), rtol=1e-4, atol=1e-3)
    assert not asked


def test_sums_that_may_be_one_kernel_are_not_measured(as_on_a_gpu: None) -> None:
    x, y = torch.randn(1 << 15), torch.randn(1 << 15)
    asked: list[Problem] = []
    original, splits.tuned = splits.tuned, lambda make: asked.append(make())
    try:
        with heuristics.override(single_row=1024):
            for f, count in (
                (lambda x, y: x.square().sum() / y.abs().sum(), 0),
                (lambda x, y: x.square().sum() / y[:1024].abs().sum(), 1),
            ):
                torch._dynamo.reset()
                got = torch.compile(f, backend="vulkan", dynamic=False)(*on_device([x, y]))  # type: ignore[call-overload]
                same(got, f(x, y), rtol=1e-2, atol=1e-2)  # type: ignore[operator]
                assert len(asked) == count
    finally:
        splits.tuned = original


def test_a_wrong_result_is_seen() -> None:
    operation = SPLITS.operation(Problem("columns", torch.float32, 12, 9, 3))
    x = torch.randn(9, 12)
    assert operation.check is not None
    assert operation.check([x], x.sum(0)) is None
    wrong = x.sum(0)
    wrong[-1] += 1
    assert "in results" in str(operation.check([x], wrong))


def test_candidates() -> None:
    assert splits.candidates(Problem("rows", torch.float16, 1, 1 << 24, 64)) == [64, 8, 16, 32, 128, 256, 512]
    assert splits.candidates(Problem("rows", torch.float16, 4, 1 << 16, 8)) == [8, 1, 2, 4, 16, 32, 64]
    # Of columns parts are alike, and not of a row or two.
    assert splits.candidates(Problem("columns", torch.float32, 9000, 96, 4)) == [4, 1, 2, 8, 16]


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_a_graph_takes_what_was_chosen(as_on_a_gpu: None, kind: str) -> None:
    x = torch.randn(2, 1 << 15) if kind == "rows" else torch.randn(64, 8200)
    dim = 1 if kind == "rows" else 0

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim)

    assert dispatches(f, x) == 2
    problems: list[Problem] = []
    original, splits.tuned = splits.tuned, lambda make: problems.append(make())
    try:
        dispatches(f, x)
    finally:
        splits.tuned = original
    bucket = SPLITS.bucket(problems[0])
    assert problems[0].parts > 1
    assert (problems[0].results, problems[0].length) == ((2, 1 << 15) if kind == "rows" else (8200, 64))
    rows = (Row(f"parts={problems[0].parts}", "ok", 2.0), Row("parts=1", "ok", 1.0))
    results().add(SPLITS, Result("split", bucket, "parts=1", rows[0].label, rows, 1, 0))
    assert dispatches(f, x) == 1


def test_max_autotune_measures(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "candidates", lambda problem: [problem.parts, 1])
    x = torch.randn(2, 1 << 15)
    dispatches(lambda x: x.sum(-1), x, tune=True, tuning_seconds=60.0)
    ((bucket, choice),) = results().index(SPLITS).values()
    assert str(bucket) == "float32 rows results=2 length=32768"
    assert choice.startswith("parts=")


def test_sums_that_a_kernel_of_rows_may_take_along_are_alike(as_on_a_gpu: None) -> None:
    """LayerNorm's two gradients would not be in one kernel with numbers of their own."""
    dispatches(lambda x: x.sum(0), torch.randn(64, 32), tune=True, tuning_seconds=60.0)
    assert not results().index(SPLITS)
