"""`python -m vkinductor sweep`: a family from end to end, one program again, and what is refused."""

from __future__ import annotations

import pytest

from vkinductor.cli import main
from vkinductor.runtime import context
from vkinductor.runtime.errors import UnsupportedError


def test_a_family_from_end_to_end(capsys):
    assert (
        main(["sweep", "--family", "^sorts$", "--seconds", "1", "--cases", "2", "--repeats", "3", "--workers", "0"])
        == 0
    )
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("sorts ")
    assert line.endswith("3 repeats: ok")
    assert last.startswith("1 families, ")
    assert last.endswith("0 failures")


def test_one_program(capsys):
    program = "scans: kind=cumsum, layout=lanes, dtype=float32, dim=rows, x=offset, sizes=fixed"
    assert main(["sweep", "--program", program, "--sizes", "rows=3,columns=9", "--repeats", "2"]) == 0
    assert "0 of 2 calls gave other bits" in capsys.readouterr().out
    assert main(["sweep", "--program", program, "--sizes", "rows=3"]) == 2
    assert "sizes rows, columns" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--family", "nothing"], "no family matches 'nothing'"),
        (["--program", "scans: kind=none"], "no such program"),
        (["--program", "none: kind=none"], "no such program"),
        (["--program", "scans: kind"], "not the name of a program"),
    ],
)
def test_what_is_refused(arguments, reason, capsys):
    assert main(["sweep", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_families_are_listed(capsys):
    assert main(["sweep", "--list", "--family", "attention"]) == 0
    assert "attention, gradients" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("more", [["--workers", "1"], ["--program", "scans: kind=none"]])
def test_a_driver_that_lacks_what_is_required_is_one_error(more, monkeypatch, capsys):
    """Not a process for each family that dies of it."""

    def refuse():
        raise UnsupportedError("no device has what is required: SwiftShader lacks shaderInt64")

    with monkeypatch.context() as patched:  # the validation layer's check at the test's end needs the device
        patched.setattr(context, "get", refuse)
        assert main(["sweep", *more]) == 1
    told = capsys.readouterr()
    assert told.err == "error: no device has what is required: SwiftShader lacks shaderInt64\n"
    assert not told.out
