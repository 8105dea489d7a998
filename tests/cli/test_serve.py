"""The serve command: its mistakes, and a process that serves until a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from vkinductor.cli import main

FAKES = Path(__file__).resolve().parent.parent / "serve"

# The command around an engine without a model.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(FAKES)!r})
from fake_engine import FakeEngine
from vkinductor.cli import main, serve
serve.make_engine = lambda arguments, progress: FakeEngine()
sys.exit(main(["serve", "--port", "0", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queue", "0"], "queue must be at least 1, not 0"),
        (["--max-body", "-1"], "body_bytes must be at least 1, not -1"),
        (["--grace", "-1"], "grace must be at least 0, not -1"),
        (["--api-key", ""], "an API key must be one line of printable ASCII"),
        (["--api-key-file", "nowhere"], "cannot read the API key"),
        (["--port", "70000"], "cannot listen on port 70000: ports are from 0 to 65535"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1 port 8000"),  # no machine has this address
    ],
)
def test_mistakes(arguments, message, capsys):
    assert main(["serve", *arguments]) == 1
    assert f"error: {message}" in capsys.readouterr().err


def test_a_port_in_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert f"error: cannot listen on 127.0.0.1 port {port}: " in capsys.readouterr().err


def test_without_the_extra(monkeypatch, capsys):
    import vkinductor.serve

    monkeypatch.delattr(vkinductor.serve, "server", raising=False)
    monkeypatch.delitem(sys.modules, "vkinductor.serve.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 1
    assert "run `pip install 'vkinductor[serve]'`" in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys):
    assert main(["serve", "--port", "0", "--device", "cpu", "--model", "nowhere"]) == 1
    assert "error: no such model: nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_until_a_signal(number, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    arguments = ["--api-key-file", str(tmp_path / "key"), "--model-name", "named"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        announced = process.stderr.readline()
        (url,) = re.findall(r"^serving named \(context 512\) on (http://127\.0\.0\.1:\d+/v1)$", announced)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
        request = urllib.request.Request(f"{url}/completions", b'{"prompt": "hello"}', headers)
        # Straight to it, whatever proxy the environment names.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
            assert json.load(response)["choices"][0]["text"] == "hello"
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert re.search(r"127\.0\.0\.1 POST /v1/completions 200 .* end=stop\n", log)
    assert len(log.splitlines()) == 1
