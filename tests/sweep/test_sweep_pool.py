"""What workers say becomes a table; one that dies costs one family."""

from __future__ import annotations

import sys

import pytest

from vkinductor.sweep import pool
from vkinductor.sweep.report import Family, reproducer
from vkinductor.sweep.worker import Order

DIES = """
import json, os, sys
order = json.load(sys.stdin)
for name in order["families"]:
    print(json.dumps({"family": name}), flush=True)
    print(json.dumps({"begin": f"{name}: tile=1"}), flush=True)
    if name == "second":
        os._exit(9)
    outcome = {"sizes": {"m": 3}, "ratio": 0.5, "problem": "", "refused": False}
    print(json.dumps({"program": f"{name}: tile=1", "outcomes": [outcome]}), flush=True)
    print(json.dumps({"end": name}), flush=True)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies(monkeypatch, workers):
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", DIES))
    lines: list[str] = []
    found = pool.run(Order(("first", "second", "third"), 1.0), workers, lines.append)
    assert [family.cases for family in found] == [1, 0, 1]
    assert [len(family.failures) for family in found] == [0, 1, 0]
    assert any("the process died: second: tile=1 (status 9)" in line for line in lines)
    assert sum(line.startswith("third ") and line.endswith("ok") for line in lines) == 1


def test_lines():
    family = Family("some", 4)
    fine = {"sizes": {"m": 3, "k": 7}, "ratio": 0.25, "problem": "", "refused": False}
    assert not family.add({"program": "some: a=1", "outcomes": [fine, {**fine, "refused": True, "problem": "no"}]})
    assert not family.add({"repeats": 100, "differing": 0, "program": "some: a=1", "sizes": {"m": 3, "k": 7}})
    assert family.line().split(None, 1)[1].startswith("1 programs     1 cases, 1 refused, lengths m:1 k:1; worst 0.25")
    assert family.line().endswith("100 repeats: ok")
    (line,) = family.add({"program": "some: a=2", "outcomes": [{**fine, "ratio": 3.0, "problem": "3 times"}]})
    assert line == f"3 times: {reproducer('some: a=2', {'m': 3, 'k': 7}, 4)}"
    assert '--program "some: a=2" --sizes m=3,k=7 --seed 4' in line
    (line,) = family.add({"repeats": 9, "differing": 2, "program": "some: a=1", "sizes": {"m": 3, "k": 7}})
    assert line.startswith("2 of 9 calls gave other bits")
    assert family.line().endswith("2 FAILED")
