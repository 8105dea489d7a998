"""Who may ask: an API key where one is set, and otherwise nobody but this machine's own programs."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from vkinductor.serve import transport
from vkinductor.serve.errors import ApiError, AuthenticationError, ForbiddenHostError

OPEN_PATHS = frozenset({"/health"})
"""Need no key: what watches a server has none."""


def is_loopback(host: str) -> bool:
    """Whether an address or name can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware. ``key`` None: no key is asked for. ``loopback``: the server listens on loopback alone.

    A loopback server without a key looks at the Host header: a page in a browser can make its own name mean 127.0.0.1
    (DNS rebinding) and would then be allowed to read the answers.
    """

    def __init__(self, app: ASGIApp, key: str | None, loopback: bool) -> None:
        self._app = app
        self._key = key
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 401 or 403."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ApiError as error:
                await transport.respond_with(send, error)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = transport.headers_of(scope)
        if self._key is None:
            host = _host_name(headers.get("host", ""))
            if self._loopback and not is_loopback(host):
                raise ForbiddenHostError(f"this server answers to localhost, not to {host[:100]!r}")
        elif scope["path"] not in OPEN_PATHS:
            kind, _, given = headers.get("authorization", "").partition(" ")
            # Compared in constant time: how much of a guess is right must not show.
            right = hmac.compare_digest(given.strip().encode(), self._key.encode())
            if kind.lower() != "bearer" or not right:
                raise AuthenticationError("a valid API key is needed: send it as Authorization: Bearer KEY")


def _host_name(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
