"""One line a request in the log: who, what, how it ended, how long it took. Never what was asked or answered."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("vkinductor.serve")

KEY = "vkinductor.record"

HUNG_UP = 499
"""Stands in the log where a client did not wait for a status; nginx's number for it."""

PATH_LENGTH = 100


@dataclass
class Record:
    """What a line says about a request beside status and time; endpoints fill in what they know."""

    prompt_tokens: int | None = None
    new_tokens: int | None = None
    queue_seconds: float | None = None
    note: str = ""

    @classmethod
    def of(cls, scope: Scope) -> Record:
        """The record of a request."""
        record: Record = scope.setdefault(KEY, cls())
        return record

    def fields(self) -> str:
        """As name=value."""
        seconds = None if self.queue_seconds is None else f"{self.queue_seconds:.3f}s"
        values = {
            "prompt": self.prompt_tokens,
            "new": self.new_tokens,
            "queue": seconds,
            "end": quote(self.note) or None,
        }
        return "".join(f" {name}={value}" for name, value in values.items() if value is not None)


class AccessLog:
    """ASGI middleware that writes the line when a request has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and tell of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.monotonic(), HUNG_UP

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        record = Record.of(scope)
        try:
            await self._app(scope, receive, noting)
        except Exception:  # becomes a response further out
            status = 500 if status == HUNG_UP else status
            raise
        finally:
            client = scope["client"][0] if scope.get("client") else "-"
            # Quoted: a path may hold line borders and terminal codes.
            path = quote(scope["path"])[:PATH_LENGTH]
            seconds = time.monotonic() - begin
            LOG.info("%s %s %s %d %.3fs%s", client, scope["method"], path, status, seconds, record.fields())
