"""The process side of serving: a socket, uvicorn, and an end that is told to everybody in the right order.

At SIGINT or SIGTERM: no more connections, 503 for those who wait, some seconds for the answer that is being written,
then the worker's thread ends. A second SIGINT does not wait.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import uvicorn

from vkinductor.llm.engine import Engine
from vkinductor.llm.errors import UnknownOptionError
from vkinductor.serve import app
from vkinductor.serve.guard import is_loopback
from vkinductor.serve.limits import Limits
from vkinductor.serve.worker import Worker

LOG = logging.getLogger("vkinductor.serve")

# Longer than clients keep idle connections in their pools: one that is closed as it is used again is an error to them.
KEEP_ALIVE_SECONDS = 65

SIGNALS = (signal.SIGINT, signal.SIGTERM)

# The engine notices a cancellation at its next token; a compilation that has begun may take longer than anybody waits.
WORKER_SECONDS = 10.0


class Server(uvicorn.Server):
    """A server of one model on a bound socket. `serve_to_the_end` runs it, ``should_exit = True`` ends it.

    ``worker`` has started and gave ``engine``. ``model``, ``limits``, ``key``: see app.py. ``grace``: seconds at the
    end for answers under way. ``on_started`` is called when connections are taken.
    """

    def __init__(
        self,
        worker: Worker,
        engine: Engine,
        bound: socket.socket,
        *,
        model: str | None = None,
        limits: Limits | None = None,
        key: str | None = None,
        grace: int = 10,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        self._worker = worker
        self._bound = bound
        self._on_started = on_started
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="vkinductor-serve-encoder")
        loopback = is_loopback(bound.getsockname()[0])
        application = app.build(worker, engine, self._encoder, model=model, limits=limits, key=key, loopback=loopback)
        super().__init__(
            uvicorn.Config(
                application,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the log names who is connected, not who somebody says is
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=grace,
            )
        )

    def serve_to_the_end(self) -> None:
        """Serve until told to stop, then end the worker and whatever else was started."""
        try:
            self.run(sockets=[self._bound])
        finally:
            self._bound.close()
            self._encoder.shutdown(cancel_futures=True)
            if not self._worker.close(WORKER_SECONDS):
                LOG.warning("the engine is still busy: not waiting for it")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse who waits before waiting for who is being answered."""
        self._worker.drain()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving. They are not raised again afterwards: the end they asked for is there."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket with an address that does not listen yet (`port` 0: any free one).

    Bound before a model loads, so that a port in use is found out at once. Raises UnknownOptionError.
    """
    if not 0 <= port < 1 << 16:  # getaddrinfo would take it modulo that
        raise UnknownOptionError(f"cannot listen on port {port}: ports are from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UnknownOptionError(f"cannot listen on {host} port {port}: {error}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise UnknownOptionError(
            f"cannot listen on {host} port {port}: {error} (--port chooses another, --port 0 any free one)"
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL that OpenAI's clients want as their base."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
