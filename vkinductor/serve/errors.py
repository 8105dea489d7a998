"""Errors that a client gets to see, each with its HTTP status and in the JSON form that OpenAI's clients parse."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """Base: an HTTP status, a kind (OpenAI's ``type``), and optionally a code, the field at fault, seconds to wait.

    ``headers`` are the response's own ones.
    """

    status = 500
    kind = "server_error"
    code: str | None = None
    closes = False
    """Whether the connection ends with the response: what is left of a body on it is no next request."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.headers = {"Connection": "close"} if self.closes else {}

    def body(self) -> dict[str, Any]:
        """The response's JSON: ``{"error": {"message", "type", "param", "code"}}``."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class InvalidRequestError(ApiError):
    """The request is malformed, out of range, or asks for what this server does not do."""

    status = 400
    kind = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """The prompt does not fit into the model's context."""

    code = "context_length_exceeded"


class AuthenticationError(InvalidRequestError):
    """The API key is missing or wrong."""

    status = 401
    code = "invalid_api_key"


class ForbiddenHostError(InvalidRequestError):
    """A loopback server was asked under a name that is not one of this machine's own (DNS rebinding)."""

    status = 403
    code = "forbidden_host"


class NotFoundError(InvalidRequestError):
    """No such path, or no such model."""

    status = 404


class MethodError(InvalidRequestError):
    """The path is there, the method is not."""

    status = 405


class BodyTimeoutError(InvalidRequestError):
    """The client sent its body too slowly."""

    status = 408
    closes = True


class BodyTooLargeError(InvalidRequestError):
    """The body is over the limit."""

    status = 413
    closes = True
    code = "request_too_large"


class MediaTypeError(InvalidRequestError):
    """The body is not declared as JSON."""

    status = 415


class QueueFullError(ApiError):
    """As many requests as may wait are waiting: ``retry_after`` says in how many seconds to try again."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(retry_after)}


class GenerationError(ApiError):
    """The model failed on this request; the reason is in the server's log, not in the response."""

    code = "generation_failed"


class UnavailableError(ApiError):
    """The server is shutting down, or its device is lost: ``retry_after`` seconds is a guess for a restarted one."""

    status = 503
    code = "unavailable"

    def __init__(self, message: str, retry_after: int = 5) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(retry_after)}
