"""Commands, options and exit codes: every mistake ends in one line that says what to do."""

from __future__ import annotations

import io
import time

import pytest

from vkinductor.cli import COMMANDS, main
from vkinductor.cli.progress import Progress


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert command in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["info", "--no-such-option"]])
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "int3"], "unknown dtype 'int3': choose one of float32, float16, bfloat16"),
        (["--device", "gpu"], "unknown device 'gpu': choose one of vulkan, cpu"),
        (["--device", "cpu", "--backend", "nonsense"], "unknown backend 'nonsense': choose none or one of"),
        (["--device", "cpu", "--model", "nowhere"], "no such model: nowhere"),
    ],
)
def test_generate_mistakes(arguments, message, capsys):
    assert main(["generate", *arguments]) == 1
    assert f"error: {message}" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_rewrites_one_line(monkeypatch):
    monkeypatch.setattr("vkinductor.cli.progress.TERMINAL_PERIOD", 0.01)
    stream = Terminal()
    with Progress(stream, detail=lambda: "7 kernels compiled").stage("compiling"):
        time.sleep(0.1)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.count("\r") > 2
    assert text.endswith("compiling: 0 s, 7 kernels compiled, done\n")


def test_progress_in_a_log_prints_whole_lines():
    stream = io.StringIO()
    with Progress(stream).stage("loading"):
        pass
    assert stream.getvalue() == "loading ...\nloading: 0 s, done\n"


def test_progress_tells_of_a_failure():
    stream = io.StringIO()
    with pytest.raises(ValueError, match="broken"), Progress(stream).stage("loading"):
        raise ValueError("broken")
    assert stream.getvalue().endswith("loading: 0 s, failed\n")
