"""HTTP on ASGI's two functions: bodies within limits, responses and streams of events, clients that hang up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import anyio
from starlette.types import Receive, Scope, Send

from vkinductor.serve.errors import ApiError, BodyTimeoutError, BodyTooLargeError, MediaTypeError
from vkinductor.serve.limits import Limits
from vkinductor.serve.shapes import encode

# A client that has not taken a chunk after so many seconds is as good as gone. A stalled one would keep its place.
SEND_SECONDS = 60.0

# A body over the limit is read and dropped, up to this many bytes and seconds: many clients look for an answer only
# after they have sent everything, and a connection that is closed before that loses the answer.
DROP_BYTES = 64 << 20
DROP_SECONDS = 10.0


class ClientGoneError(Exception):
    """The client hung up: there is nobody to answer."""


def headers_of(scope: Scope) -> dict[str, str]:
    """A request's headers, names in lower case; of one sent several times the last."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The body of a request that says it is JSON.

    Raises MediaTypeError, BodyTooLargeError, BodyTimeoutError, ClientGoneError.
    """
    headers = headers_of(scope)
    _check_media_type(headers)
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body_bytes:
        if "expect" not in headers:  # who waits for "100 Continue" has sent nothing yet
            await _drop(receive)
        raise _too_large(limits)
    body = bytearray()
    with anyio.move_on_after(limits.body_seconds) as scope_of_time:
        while True:
            message = await _received(receive)
            body += message.get("body", b"")
            if len(body) > limits.body_bytes:
                body.clear()
                await _drop(receive)
                raise _too_large(limits)
            if not message.get("more_body", False):
                break
    if scope_of_time.cancelled_caught:
        raise BodyTimeoutError(f"the body did not arrive within {limits.body_seconds:g} s")
    return bytes(body)


async def wait_for_hang_up(receive: Receive) -> None:
    """Return when the client has hung up. Only after its body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(send: Send, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
    """Send a whole JSON response."""
    content = encode(dict(body))
    await start(
        send, status, {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    )
    await put(send, content, more=False)


async def respond_with(send: Send, error: ApiError) -> None:
    """Send an error's response."""
    await respond(send, error.status, error.body(), error.headers)


async def start_events(send: Send) -> None:
    """Begin a stream of server-sent events. Proxies that know the last header pass each on at once."""
    stream = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store",
        "x-accel-buffering": "no",
    }
    await start(send, 200, stream)


async def start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    """Send status and headers."""
    pairs: Iterable[tuple[bytes, bytes]] = [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
    ]
    await send({"type": "http.response.start", "status": status, "headers": list(pairs)})


async def put(send: Send, content: bytes, more: bool = True) -> None:
    """Send a part of a body. Raises ClientGoneError when the client takes nothing any more."""
    try:
        with anyio.fail_after(SEND_SECONDS):
            await send({"type": "http.response.body", "body": content, "more_body": more})
    except (OSError, TimeoutError) as error:
        raise ClientGoneError from error


def _check_media_type(headers: Mapping[str, str]) -> None:
    # Strict for safety, too: a page in a browser can send any other type to a loopback server without being asked.
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        given = f"not {kind[:100]!r}" if kind else "and the header is missing"
        raise MediaTypeError(f"the body must be sent as Content-Type: application/json, {given}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise MediaTypeError("the body must be sent without Content-Encoding")


async def _received(receive: Receive) -> Any:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


async def _drop(receive: Receive) -> None:
    dropped = 0
    with anyio.move_on_after(DROP_SECONDS):
        while dropped < DROP_BYTES:
            message = await _received(receive)
            dropped += len(message.get("body", b""))
            if not message.get("more_body", False):
                return


def _too_large(limits: Limits) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {limits.body_bytes} bytes, which is the limit")
