"""The benchmark of tuning: its defaults are defaults, programs that are the same are said to be, tables and files."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from vkinductor.codegen.tuning.gemm import GEMM, problem_of
from vkinductor.codegen.tuning.results import Result, Row, results
from vkinductor.device.registry import registry

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, by its name in the repository."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.tuning")


def case(tuning: Any, function: Any, *shape: int) -> Any:
    return tuning.Case("g", str(shape), function, lambda device: [torch.randn(shape, device=device)], nbytes=1.0)


def test_problems_are_cases_of_other_benchmarks(tuning: Any) -> None:
    assert len(set(tuning.PROBLEMS)) == len(tuning.problems(False, "")) == 26
    assert [c.key for c in tuning.problems(False, "depthwise")] == [k for k in tuning.PROBLEMS if "depthwise" in k]
    assert len(tuning.problems(True, "")) == len(tuning.QUICK)


def test_an_unknown_problem(tuning: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tuning.main(["--quick", "--only", "nothing"])
    assert ended.value.code == 2
    assert "no problem's name holds 'nothing'; there are gemm: product" in capsys.readouterr().err


def test_a_run_as_a_whole(tuning: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One problem with two candidates at most, one of Inductor's kernels; each process has the caches of the run."""
    assert tuning.main(["--quick", "--only", "product|softmax", "--seconds", "5", "--json", str(tmp_path)]) == 0
    said = json.loads((tmp_path / "tuning.json").read_text())
    assert [row["case"] for row in said["rows"]] == [key for key in tuning.QUICK if re.search("product|softmax", key)]
    for row in said["rows"]:
        assert not row["note"]
        assert row["measured"] == row["candidates"] > 1
        assert row["default"] > 0
        assert row["default_waiting"] > 0
        assert row["same"] or row["tuned"] > 0
        assert not (row["same"] and row["chosen"])
    assert list(said["again"].values()) == [0, 0]
    assert said["about"]["device"]
    text = (tmp_path / "tuning.md").read_text()
    assert "A second process took 0 timings" in text
    assert text in capsys.readouterr().out


def test_a_default_that_knows_of_measurements_is_refused(tuning: Any, empty_store: None) -> None:
    registry.open()
    bucket = GEMM.bucket(problem_of(1, 8, 8, 8, torch.float32))
    results().add(GEMM, Result("gemm", bucket, "b", "a", (Row("a", "ok", 2.0), Row("b", "ok", 1.0)), 1, 1))
    with pytest.raises(RuntimeError, match="before the defaults were compiled"):
        next(tuning.compare(tuning.Vulkan(), [case(tuning, torch.neg, 64)], 1.0))
    registry.tuning = None  # as another process would find it
    with pytest.raises(RuntimeError, match="results of another process"):
        next(tuning.compare(tuning.Vulkan(), [case(tuning, torch.neg, 64)], 1.0))


def test_what_is_written_is_the_users(tuning: Any) -> None:
    """Neither eager operators nor candidates of the tuner."""
    torch._dynamo.reset()
    with tuning.written() as programs:
        x = torch.randn(300, 7, device="vulkan").cos() + 1
        assert not programs
        torch.compile(lambda x: x.sin() + 2, backend="vulkan")(x)
    assert len(programs) == 1
    assert "vulkan_kernel" in programs[0]
    assert "AOT ID" not in programs[0]


def test_a_failure_is_a_row_with_the_reason(tuning: Any, empty_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: torch.Tensor) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(tuning, "compiled", lambda system, case, options: case.function(torch.ones(1)))
    (row,) = tuning.compare(tuning.Vulkan(), [case(tuning, fails, 64)], 1.0)
    assert row.note == "ValueError: no such thing"
    assert row.ratios is None


def test_ways_take_turns(tuning: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each first as often as last, and a barrier before each call where they wait."""
    log: list[str] = []

    class System:
        def synchronize(self) -> None: ...

        def span(self, record: Any, host: float) -> float:
            record()
            log.append("|")
            return 12.0 if "a" in log[-2] else 6.0

    stream = registry.open().runtime.stream
    monkeypatch.setattr(type(stream), "barrier", lambda self: log.append("-"))
    monkeypatch.setattr(tuning, "WARM_UP_S", 0.0)
    monkeypatch.setattr(tuning, "_MOST_CALLS", 2)
    ways = [[lambda: log.append("a")], [lambda: log.append("b"), lambda: log.append("b")]]
    assert tuning.turns(System(), ways, waiting=False) == [6.0, 3.0]
    spans = "".join(log[3:]).split("|")  # behind one call of each to warm up
    assert spans[:6] == ["aa", "bb", "bb", "aa", "aa", "bb"]
    assert "-" not in log
    log.clear()
    tuning.turns(System(), ways, waiting=True)
    assert log.count("-") == len([entry for entry in log if entry in "ab"])


def test_the_table_says_the_worst(tuning: Any) -> None:
    rows = [
        tuning.Row("equal", 10.0, None, 20.0, None, True, 3.0, 5, 9),
        tuning.Row("slower", 10.0, 9.0, 20.0, 20.6, False, 3.0, 5, 9, ["gemm: a tile"]),
    ]
    text = tuning.table(rows)
    assert "| equal | 10.0 |  | 1.000 | 20.0 |  | 1.000 | 3.0 | 5/9 | same |" in text
    assert "| slower | 10.0 | 9.00 | 0.900 | 20.0 | 20.6 | 1.030 | 3.0 | 5/9 | gemm: a tile |" in text
    assert "missed; worst 1.030, slower" in text
    assert "met; worst 1.000, equal" in tuning.table(rows[:1])
    assert "missed" in tuning.table([rows[0], tuning.Row("failed", note="ValueError: no")])
