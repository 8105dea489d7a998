"""The benchmarks run: what they count is what they say, and a table holds what failed too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import vkinductor

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, by its name in the repository."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import overhead as module

    return module


def test_floors_are_chains_of_200_dependent_dispatches(overhead: Any) -> None:
    recorded, single = overhead.floors(0.01)
    for row in (recorded, single):
        assert row.kernels == overhead.CHAIN
        assert row.counts["barriers"] == pytest.approx(overhead.CHAIN, abs=1)
        assert "allocations" not in row.counts
    assert recorded.counts["submits"] == recorded.counts["replays"] == 1
    assert single.device is None or single.device > 0


def test_a_graphs_own_dispatches_are_the_floor_beside_it(overhead: Any) -> None:
    torch._dynamo.reset()
    shown: list[Any] = []
    workloads = overhead.workloads
    with pytest.MonkeyPatch.context() as patch:
        chain = f"{overhead.CHAIN} kernels"
        patch.setattr(overhead, "workloads", lambda *a: {chain: workloads(*a)[chain]})
        overhead.rows(overhead.RECORDED, overhead.systems()[overhead.RECORDED], 0.01, shown.append)
    graph, floor = shown
    assert not graph.note
    assert graph.kernels == floor.kernels == overhead.CHAIN
    assert graph.counts["submits"] == floor.counts["submits"] == 1
    assert "allocations" not in graph.counts


def test_what_fails_is_a_row_with_the_reason(overhead: Any) -> None:
    def refuse(_: Any) -> Any:
        raise ValueError("first\nlast")

    shown: list[Any] = []
    overhead.rows("broken", ("cpu", refuse, lambda: None), 0.01, shown.append)
    assert {row.note for row in shown} == {"ValueError: first ... last"}


def test_the_peers_process_leaves_the_device_alone(overhead: Any, tmp_path: Path) -> None:
    """torch has one accelerator a process: with ours registered, CUDA's backward fails inside torch."""
    path = tmp_path / "rows.json"
    line = [sys.executable, "-X", "importtime", "-m", "benchmarks.overhead", "--cuda", "0.01", "--json", str(path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # there would be a whole benchmark to wait for
    result = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "benchmarks.measure" in imported
    assert "vkinductor" not in imported


def test_the_chain_is_one_kernel_a_step(overhead: Any) -> None:
    """Nothing of it may fuse, or the table would compare calls of different numbers of kernels."""
    torch._dynamo.reset()
    x = torch.randn(16, 16, device="vulkan")
    compiled = torch.compile(overhead.chain, backend="vulkan")
    compiled(x)
    vkinductor.reset_stats()
    compiled(x)
    assert vkinductor.stats()["dispatches"] == overhead.CHAIN


def test_tables_and_files(overhead: Any, tmp_path: Path) -> None:
    row = overhead.Row
    rows = [
        row("w", "first", 10.0, 20.0, 30.0, kernels=5, counts={"submits": 1.0}),
        row("w", "second", 1.0, 40.0, 30.0, device=7.0),
        row("w", "third", note="no such card"),
    ]
    lines = overhead.table(rows).splitlines()
    assert len(lines) == 4
    assert " 2.00 " in lines[1]  # host time a kernel
    assert "submits 1" in lines[1]
    assert " 2.00 " in lines[2]  # wall time to the first row's
    assert "no such card" in lines[3]
    overhead.save(str(tmp_path / "r.json"), rows, torch="x")
    saved = json.loads((tmp_path / "r.json").read_text())
    assert [r["system"] for r in saved["rows"]] == ["first", "second", "third"]
    assert overhead.load(str(tmp_path / "r.json")) == rows
    assert saved["torch"] == "x"
