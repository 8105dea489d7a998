"""A real server on loopback in a thread, around an engine without a model."""

from __future__ import annotations

import logging
import threading

import pytest


@pytest.fixture
def serve():
    """A function (engine or what makes one, **options of Server) -> Running; at the end no thread of it may be left."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    from vkinductor.serve.server import Server, address_of, bind
    from vkinductor.serve.worker import Worker

    class Running:
        """A server that takes connections."""

        def __init__(self, engine, **options):
            self.worker = Worker(engine if callable(engine) else lambda: engine)
            self.engine = self.worker.start()
            started = threading.Event()
            bound = bind("127.0.0.1", 0)
            self.url = address_of(bound)
            options = {"grace": 5, **options}
            self.server = Server(self.worker, self.engine, bound, on_started=started.set, **options)
            self.thread = threading.Thread(target=self.server.serve_to_the_end, name="server-of-a-test")
            self.thread.start()
            assert started.wait(30)

        def stop(self):
            self.server.should_exit = True
            if hasattr(self.engine, "gate"):
                self.engine.gate.set()
            self.thread.join(30)
            assert not self.thread.is_alive()

    before = set(threading.enumerate())
    running = []

    def start(engine, **options):
        running.append(Running(engine, **options))
        return running[-1]

    yield start
    for one in running:
        one.stop()
    left = {thread.name for thread in set(threading.enumerate()) - before if "serve" in thread.name}
    assert not left


@pytest.fixture
def log():
    """The lines of the server's log, as they come."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("vkinductor.serve"), Handler()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)
