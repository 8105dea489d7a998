"""The log of results: going on after a cut, refusing what is not its own, the table."""

from __future__ import annotations

import pytest

from vkinductor.conformance.report import Log, ReportError, bad, counts, is_bad, load, share, table

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
    assert "| `sin` | float16 | eager |  | a \\| b c |" in text
    assert "* linear algebra: `svd`" in text


def test_shares_leave_out_what_may_stay_on_the_cpu():
    results = {
        ("add", "float32"): {"eager": verdict(), "static": verdict(), "backward": verdict()},
        ("sort", "float32"): {"eager": verdict("fallback"), "static": verdict(), "backward": verdict("skipped")},
        ("add", "int64"): {"eager": verdict("fallback")},
        ("linalg.det", "float32"): {"eager": verdict("fallback")},
        ("row:a:aten.add", "float32"): {"eager": verdict("fallback")},
    }
    assert share(results, ("eager", "static")) == (1, 2)
    assert share(results, ("backward",)) == (1, 1)
    assert "forward: 1 of 2 on the GPU alone (50.0 %)" in table(ABOUT, results)


@pytest.mark.parametrize(
    ("entry", "kind", "expected"),
    [("sin", "wrong", True), ("sin", "error", True), ("to_sparse", "error", False), ("to_sparse", "crash", True),
     ("sin", "fallback", False)],
)  # fmt: skip
def test_an_error_with_a_listed_reason_is_no_fault(entry, kind, expected):
    assert is_bad(entry, verdict(kind)) is expected
