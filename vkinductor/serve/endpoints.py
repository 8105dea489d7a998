"""The two endpoints that generate: from a body to a job, from its events to a response or a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from vkinductor.llm.engine import Engine
from vkinductor.serve import transport
from vkinductor.serve.access import Record
from vkinductor.serve.admission import Admission
from vkinductor.serve.errors import ApiError, NotFoundError
from vkinductor.serve.inbox import HungUp, Inbox, News
from vkinductor.serve.jobs import Failed, Finished, Job, Piece
from vkinductor.serve.limits import Limits
from vkinductor.serve.prompts import Plan, plan
from vkinductor.serve.schema import ChatRequest, CompletionRequest, parse
from vkinductor.serve.shapes import COMMENT, DONE, ChatShape, CompletionShape, Shape, Usage, event
from vkinductor.serve.transport import ClientGoneError
from vkinductor.serve.worker import Worker

# A stream on which nothing came for so long gets a comment: proxies close silent connections after 30 s or more.
SILENCE_SECONDS = 15.0


@dataclass(frozen=True)
class Service:
    """What endpoints share. ``model`` is the name that clients use; ``encoder`` parses and encodes, off the loop."""

    worker: Worker
    engine: Engine
    model: str
    limits: Limits
    admission: Admission
    encoder: Executor


class Generate:
    """An ASGI endpoint that answers requests of one schema in one shape."""

    def __init__(
        self, service: Service, schema: type[ChatRequest] | type[CompletionRequest], shape: type[Shape]
    ) -> None:
        self._service = service
        self._schema = schema
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ApiError while nothing has been sent."""
        service, record = self._service, Record.of(scope)
        try:
            with service.admission.place():
                body = await transport.read_body(scope, receive, service.limits)
                # Megabytes of JSON, a template and a tokenizer: milliseconds, which the loop does not have.
                request, planned = await asyncio.get_running_loop().run_in_executor(
                    service.encoder, self._prepare, body
                )
                record.prompt_tokens = len(planned.prompt)
                shape = self._shape(service.model, request.include_usage)
                async with self._submitted(planned, receive, record) as (job, inbox):
                    answer = self._stream if request.stream else self._whole
                    await answer(job, inbox, shape, send, record)
        except ClientGoneError:
            record.note = "hung up"

    def _prepare(self, body: bytes) -> tuple[ChatRequest | CompletionRequest, Plan]:
        service = self._service
        request = parse(body, self._schema, service.limits)
        check_model(request.model, service.model)
        engine = service.engine
        return request, plan(request, service.worker.tokenizer, engine.context, tuple(engine.stop_tokens))

    @asynccontextmanager
    async def _submitted(self, planned: Plan, receive: Receive, record: Record) -> AsyncIterator[tuple[Job, Inbox]]:
        """A job in the queue while the block runs; at its end, however it ends, nobody waits for the job any more."""
        inbox = Inbox()
        job = Job(planned.prompt, planned.options, planned.stops, inbox.deliver)
        self._service.worker.submit(job)
        watcher = asyncio.create_task(_report_hang_up(receive, inbox))
        try:
            yield job, inbox
        finally:
            self._service.worker.cancel(job)
            watcher.cancel()
            inbox.close()
            if job.began is not None:
                record.queue_seconds = job.began - job.created

    async def _whole(self, job: Job, inbox: Inbox, shape: Shape, send: Send, record: Record) -> None:
        texts = []
        while not isinstance(news := await _news(inbox), Finished):
            if isinstance(news, Piece):
                texts.append(news.text)
        usage = _finish(news, job, record)
        await transport.respond(send, 200, shape.whole("".join(texts), news.reason, usage))

    async def _stream(self, job: Job, inbox: Inbox, shape: Shape, send: Send, record: Record) -> None:
        """Nothing is sent before there is news: what fails before the first token has a status of its own."""
        inbox.tick(SILENCE_SECONDS)
        news = await _news(inbox)
        await transport.start_events(send)
        try:
            opening = b"".join(map(event, shape.opening()))
            while not isinstance(news, Finished):
                content = event(shape.piece(news.text)) if isinstance(news, Piece) else COMMENT
                await transport.put(send, opening + content)
                opening = b""
                news = await _news(inbox)
            usage = _finish(news, job, record)
            closing = b"".join(map(event, shape.closing(news.reason, usage)))
            await transport.put(send, opening + closing + DONE, more=False)
        except ApiError as error:  # too late for a status
            record.note = error.code or "error"
            await transport.put(send, event(error.body()), more=False)


def check_model(name: str | None, served: str) -> None:
    """Raise NotFoundError for another model than the one that is served; None means that one."""
    if name is not None and name != served:
        raise NotFoundError(
            f"there is no model {name[:100]!r} here, only {served!r}", param="model", code="model_not_found"
        )


async def _news(inbox: Inbox) -> News:
    """The next news of a job. Raises the error of one that failed, ClientGoneError for a client that hung up."""
    news = await inbox.get()
    if isinstance(news, Failed):
        raise news.error
    if isinstance(news, HungUp):
        raise ClientGoneError
    return news


async def _report_hang_up(receive: Receive, inbox: Inbox) -> None:
    await transport.wait_for_hang_up(receive)
    inbox.deliver(HungUp())


def _finish(news: Finished, job: Job, record: Record) -> Usage:
    record.new_tokens, record.note = news.tokens, news.reason
    return Usage(len(job.prompt), news.tokens)


def chat(service: Service) -> Generate:
    """POST /v1/chat/completions."""
    return Generate(service, ChatRequest, ChatShape)


def completions(service: Service) -> Generate:
    """POST /v1/completions."""
    return Generate(service, CompletionRequest, CompletionShape)
