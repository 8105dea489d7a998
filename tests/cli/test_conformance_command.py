"""`python -m vkinductor conformance`: one entry from end to end, and what is refused."""

from __future__ import annotations

import json

import pytest

from vkinductor.cli import main


def test_an_entry_from_end_to_end(tmp_path, capsys):
    log, markdown = tmp_path / "log.jsonl", tmp_path / "operators.md"
    line = ["conformance", "sgn", "--dtypes", "float32,int64", "--variants", "eager,static", "--samples", "2"]
    line += ["--workers", "1", "--log", str(log), "--markdown", str(markdown)]
    assert main(line) == 0
    assert "gpu: 4" in capsys.readouterr().out
    tasks = [json.loads(text) for text in log.read_text().splitlines()][1:]
    assert [(task["entry"], task["dtype"]) for task in tasks] == [("sgn", "float32"), ("sgn", "int64")]
    assert "| `sgn` | gpu | gpu | - | - |  |" in markdown.read_text()
    assert main(line) == 0  # nothing is left to do
    captured = capsys.readouterr()
    assert "gpu: 4" in captured.out
    assert "0 of 0" in captured.err
    assert len(log.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["no_such_entry"], "no entry is called 'no_such_entry'"),
        (["add", "--dtypes", "float7"], "unknown dtype 'float7'"),
        (["add", "--variants", "fast"], "unknown variant 'fast'"),
    ],
)
def test_names_that_fit_nothing(arguments, reason, capsys):
    assert main(["conformance", *arguments]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--shard", "3"], ["--shard", "3/2"], ["--shard", "0/2"], ["--samples", "0"]])
def test_arguments_that_make_no_sense(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["conformance", *arguments])
    assert caught.value.code == 2


def test_a_log_of_something_else(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text("something else\n")
    assert main(["conformance", "add", "--log", str(log)]) == 2
    assert "does not hold results" in capsys.readouterr().err
    assert log.read_text() == "something else\n"
