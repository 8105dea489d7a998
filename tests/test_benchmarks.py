"""The benchmarks run: what they count is what they say, and a table holds what failed too."""

from __future__ import annotations

import json
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
    assert saved["torch"] == "x"
