"""The log of results: going on after a cut, refusing what is not its own, the table."""

from __future__ import annotations

import pytest

from vkinductor.conformance.report import Log, ReportError, bad, counts, load, table

ABOUT = {"device": "a card", "torch": "2.13"}


def verdict(kind: str = "gpu", detail: str = "", **fallbacks: int) -> dict:
    return {"verdict": kind, "detail": detail, "samples": 2, "fallbacks": fallbacks}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "log.jsonl"


def test_a_run_goes_on_where_it_was_cut(path):
    log = Log(path, ABOUT)
    log.add("add", "float32", {"eager": verdict()})
    log.add("sort", "int64", {"eager": verdict("fallback", "aten.sort", **{"aten.sort": 3})})
    log.close()
    with path.open("a") as file:
        file.write('{"entry": "mul", "dtype"')
    again = Log(path, ABOUT)
    assert set(again.results) == {("add", "float32"), ("sort", "int64")}
    again.add("mul", "float32", {"eager": verdict("wrong", "off")})
    again.close()
    about, results = load(path)
    assert about == ABOUT
    assert set(results) == {("add", "float32"), ("sort", "int64"), ("mul", "float32")}


def test_results_of_something_else_are_not_added_to(path):
    Log(path, ABOUT).close()
    before = path.read_text()
    with pytest.raises(ReportError, match="another file"):
        Log(path, {**ABOUT, "torch": "2.14"})
    assert path.read_text() == before


@pytest.mark.parametrize("content", ["not JSON\n", '{"a": 1}\n', "[1]\n"])
def test_a_file_of_something_else(path, content):
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ReportError, match="does not hold"):
        load(path)
    with pytest.raises(ReportError):
        Log(path, ABOUT)
    assert path.read_text() == content


def test_the_table_shows_the_worst_and_why():
    results = {
        ("add", "float32"): {"eager": verdict(), "static": verdict()},
        ("add", "int64"): {"eager": verdict("fallback", "aten.add", **{"aten.add": 1}), "static": verdict()},
        ("sin", "float16"): {"eager": verdict("wrong", "a | b\nc")},
        ("svd", "float32"): {"eager": verdict("crash", "ended with -11"), "static": verdict("error", "E: x")},
    }
    assert counts(results) == {"gpu": 3, "fallback": 1, "wrong": 1, "crash": 1, "error": 1}
    assert [row[:3] for row in bad(results, "wrong", "crash")] == [
        ("sin", "float16", "eager"),
        ("svd", "float32", "eager"),
    ]
    text = table(ABOUT, results)
    assert "* device: a card" in text
    assert "| `add` | cpu | gpu | - | - | aten.add |" in text
    assert "| `svd` | CRASH | ERROR | - | - |  |" in text
    assert "| `sin` | float16 | eager | a \\| b c |" in text
