"""What a well-behaved client never sends, and clients that go away: bytes on a socket."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
from fake_engine import FakeEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def running(serve, engine, log):
    return serve(engine)


def ask(running, method, path, body=None, headers=None):
    """Status, headers and parsed body of one request."""
    place = urlsplit(running.url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    try:
        connection.request(method, path, body, JSON if headers is None else headers)
        response = connection.getresponse()
        return response.status, response.headers, json.loads(response.read() or b"null")
    finally:
        connection.close()


def post(running, body, path=COMPLETIONS, headers=None):
    return ask(running, "POST", path, body if isinstance(body, bytes | str) else json.dumps(body), headers)


def send(running, body):
    """A connection on which a request has been sent."""
    place = urlsplit(running.url)
    connection = socket.create_connection((place.hostname, place.port), timeout=60)
    content = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def wait_until(true):
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b"\xff\xfe", "the body is not valid JSON"),
        (b'{"prompt": "\\ud800"}', "the body is not valid JSON"),
        (b'{"prompt": "x", "temperature": NaN}', "the body is not valid JSON"),
        (b'{"prompt": "x", "seed": 1' + b"0" * 5000 + b"}", "the body is not valid JSON"),
        (b"[" * 100_000, "the body is not valid JSON"),
        (b"[1]", "the body must be a JSON object"),
        (b"{}", "prompt is missing"),
    ],
    ids=range(9),
)
def test_malformed_bodies(running, body, message):
    status, _, answer = post(running, body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert message in answer["error"]["message"]


def test_a_huge_body(serve, engine, log):
    from vkinductor.serve.limits import Limits

    running = serve(engine, limits=Limits(body_bytes=1000))
    body = json.dumps({"prompt": "x" * 5_000_000}).encode()
    status, headers, answer = post(running, body)
    assert (status, answer["error"]["code"]) == (413, "request_too_large")
    assert "1000 bytes" in answer["error"]["message"]
    assert headers["connection"] == "close"
    chunks = iter([body[:700], body[700:1400], body[1400:]])  # of a length that nobody declared
    assert post_chunks(running, chunks)[0] == 413
    status, _, _ = ask(
        running, "POST", COMPLETIONS, b"", {**JSON, "Content-Length": "9" * 15, "Expect": "100-continue"}
    )
    assert status == 413
    assert post(running, {"prompt": "x"})[0] == 200


def post_chunks(running, chunks):
    place = urlsplit(running.url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    try:
        connection.request("POST", COMPLETIONS, chunks, {**JSON, "Transfer-Encoding": "chunked"}, encode_chunked=True)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_a_body_that_does_not_come(serve, engine, log):
    from vkinductor.serve.limits import Limits

    running = serve(engine, limits=Limits(body_seconds=0.05))
    place = urlsplit(running.url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 10\r\n\r\n{{".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("GET", "/nothing", {}, 404, None),
        ("GET", CHAT, {}, 405, None),
        ("DELETE", "/v1/models", {}, 405, None),
        ("POST", CHAT, {"Content-Type": "text/plain"}, 415, None),
        ("POST", CHAT, {}, 415, None),
        ("POST", CHAT, {**JSON, "Content-Encoding": "gzip"}, 415, None),
        ("GET", "/v1/models", {"Host": "evil.example"}, 403, "forbidden_host"),
        ("POST", CHAT, {**JSON, "Host": "evil.example:80"}, 403, "forbidden_host"),
        ("GET", "/v1/models", {"Host": "["}, 403, "forbidden_host"),
    ],
)
def test_requests_that_are_refused(running, method, path, headers, status, code):
    given, answered, body = ask(running, method, path, b"{}" if method == "POST" else None, headers)
    assert (given, body["error"]["code"]) == (status, code)
    assert status != 405 or answered["allow"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000"])
def test_names_of_this_machine(running, host):
    assert ask(running, "GET", "/v1/models", headers={"Host": host})[0] == 200


def test_health(running, engine, serve):
    assert ask(running, "GET", "/health")[::2] == (200, {"status": "ok", "inside": 0, "waiting": 0})
    guarded = serve(FakeEngine(), key="secret")
    assert ask(guarded, "GET", "/health")[0] == 200
    assert ask(guarded, "GET", "/v1/models", headers={"Authorization": "Basic secret"})[0] == 401
    assert ask(guarded, "GET", "/v1/models", headers={"Authorization": "Bearer secret", "Host": "x.example"})[0] == 200
    guarded.worker.drain()
    status, _, body = ask(guarded, "GET", "/health")
    assert (status, body["status"]) == (503, "the server is shutting down")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_the_engine(running, engine, log, stream):
    engine.endless, engine.delay = True, 0.005
    with send(running, {"prompt": "x", "max_tokens": 500, "stream": stream}) as connection:
        assert engine.began.wait(30)
        if stream:
            assert b"text/event-stream" in connection.recv(1000)
    wait_until(lambda: not running.worker.busy)
    assert engine.produced < 500
    assert engine.active == 0
    engine.endless, engine.delay = False, 0
    assert post(running, {"prompt": "next"})[2]["choices"][0]["text"] == "next"
    (line,) = [line for line in log if "end=hung" in line]
    assert f" {200 if stream else 499} " in line


def test_a_client_that_hangs_up_while_it_waits_leaves_the_queue(running, engine, log):
    engine.gate.clear()
    with send(running, {"prompt": "first"}):
        assert engine.began.wait(30)
        with send(running, {"prompt": "second"}):
            wait_until(lambda: running.worker.waiting == 1)
        wait_until(lambda: running.worker.waiting == 0)
    wait_until(lambda: not running.worker.busy)
    assert len(engine.prompts) == 1
    wait_until(lambda: ask(running, "GET", "/health")[2]["inside"] == 0)


def test_a_stream_that_waits_gets_comments(running, engine, monkeypatch):
    monkeypatch.setattr("vkinductor.serve.endpoints.SILENCE_SECONDS", 0.02)
    engine.gate.clear()
    with send(running, {"prompt": "x", "stream": True}) as connection:
        content = b""
        while content.count(b"\n: \n") < 2:
            content += connection.recv(1000)
        engine.gate.set()
        while b"[DONE]" not in content:
            content += connection.recv(1000)


def test_the_log_has_one_line_and_no_content(running, log):
    post(running, {"prompt": "a secret"})
    ask(running, "GET", "/a%0Ab%1b[2J")
    wait_until(lambda: len(log) == 2)
    assert log[0].startswith(f"127.0.0.1 POST {COMPLETIONS} 200 ")
    assert " prompt=9 new=8 " in log[0]
    assert log[0].endswith(" end=stop")
    assert "secret" not in log[0]
    assert "/a%0Ab%1B%5B2J 404" in log[1]


def test_what_nobody_expected(running, log, monkeypatch, capsys):
    def fail(*arguments):
        raise ZeroDivisionError("inner detail")

    monkeypatch.setattr("vkinductor.serve.endpoints.plan", fail)
    status, _, answer = post(running, {"prompt": "x"})
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert "detail" not in answer["error"]["message"]
    wait_until(lambda: f"{COMPLETIONS} 500 " in "".join(log))


def test_the_end_lets_who_is_answered_finish(serve, engine, log):
    """One is answered, one waits: the first gets its answer, the second 503, and no thread is left (see `serve`)."""
    running = serve(engine)
    engine.gate.clear()
    results = {}

    def keep(name):
        results[name] = post(running, {"prompt": name})

    threads = [threading.Thread(target=keep, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    assert engine.began.wait(30)
    threads[1].start()
    wait_until(lambda: running.worker.waiting == 1)
    running.server.should_exit = True
    threads[1].join(30)
    status, headers, answer = results["second"]
    assert (status, answer["error"]["message"]) == (503, "the server is shutting down")
    assert headers["retry-after"]
    engine.gate.set()
    threads[0].join(30)
    assert results["first"][0] == 200
    assert results["first"][2]["choices"][0]["text"] == "first"
    running.stop()


def test_the_end_does_not_wait_for_ever(serve, engine, log):
    running = serve(engine, grace=1)
    engine.endless, engine.delay = True, 0.005
    with send(running, {"prompt": "x", "max_tokens": 500, "stream": True}) as connection:
        assert engine.began.wait(30)
        engine.gate.clear()
        running.server.should_exit = True
        running.thread.join(30)
        assert not running.thread.is_alive()
        assert not running.worker.busy
        while connection.recv(1000):
            pass
