"""The ASGI application: paths, what stands around them, and errors of any kind in OpenAI's form."""

from __future__ import annotations

from concurrent.futures import Executor

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vkinductor.llm.engine import Engine
from vkinductor.serve import endpoints
from vkinductor.serve.access import AccessLog
from vkinductor.serve.admission import Admission
from vkinductor.serve.endpoints import Service
from vkinductor.serve.errors import ApiError, MethodError, NotFoundError
from vkinductor.serve.guard import Guard
from vkinductor.serve.limits import Limits
from vkinductor.serve.shapes import encode
from vkinductor.serve.worker import Worker

INTERNAL = "the server failed; its log has the reason"


def build(
    worker: Worker,
    engine: Engine,
    encoder: Executor,
    *,
    model: str | None = None,
    limits: Limits | None = None,
    key: str | None = None,
    loopback: bool = True,
) -> Starlette:
    """The application around a worker that has started and the engine it gave.

    ``encoder`` gets the work of encoding prompts, ``model`` is what clients call the model (None: the engine's name).
    For ``key`` and ``loopback`` see guard.py.
    """
    limits = limits or Limits()
    admission = Admission(limits.queue, worker.seconds_until_free)
    service = Service(worker, engine, model or engine.name, limits, admission, encoder)
    about = _About(service)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", endpoints.chat(service), methods=["POST"]),
            Route("/v1/completions", endpoints.completions(service), methods=["POST"]),
            Route("/v1/models", about.models),
            Route("/v1/models/{model:path}", about.model),
            Route("/health", about.health),
        ],
        middleware=[Middleware(AccessLog), Middleware(Guard, key=key, loopback=loopback)],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _unexpected},
    )


class _About:
    """The endpoints that only tell something."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        """The one model, in a list."""
        return _json({"object": "list", "data": [self._description()]})

    async def model(self, request: Request) -> Response:
        """The one model, or 404."""
        endpoints.check_model(request.path_params["model"], self._service.model)
        return _json(self._description())

    async def health(self, request: Request) -> Response:
        """200 while requests are taken, 503 otherwise."""
        worker = self._service.worker
        status = {"status": worker.refusal or "ok", "inside": self._service.admission.inside, "waiting": worker.waiting}
        return _json(status, 200 if worker.refusal is None else 503)

    def _description(self) -> dict[str, object]:
        # `created` is a field of OpenAI's that nobody here knows the value of; clients demand an integer.
        service = self._service
        name, context = service.model, service.engine.context
        return {"id": name, "object": "model", "created": 0, "owned_by": "vkinductor", "context": context}


def _json(body: dict[str, object], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(body), status, headers, media_type="application/json")


def _error_response(error: ApiError) -> Response:
    return _json(error.body(), error.status, error.headers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    if error.status_code == 404:
        return _error_response(NotFoundError(f"there is nothing at {path}"))
    if error.status_code == 405:
        response = _error_response(MethodError(f"{path} does not take {request.method}"))
        response.headers.update(error.headers or {})
        return response
    other = ApiError(error.detail)
    other.status = error.status_code
    return _error_response(other)


async def _unexpected(request: Request, error: Exception) -> Response:
    return _error_response(ApiError(INTERNAL))
