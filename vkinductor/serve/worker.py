"""The queue and the one thread that owns the engine: first come, first served, one generation at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from vkinductor.llm.engine import Engine
from vkinductor.llm.errors import ModelError, PromptTooLongError
from vkinductor.runtime.errors import DeviceLostError
from vkinductor.serve.errors import ApiError, ContextLengthError, GenerationError, InvalidRequestError, UnavailableError
from vkinductor.serve.generation import generate
from vkinductor.serve.jobs import Failed, Job
from vkinductor.serve.tokenizer import SharedTokenizer

LOG = logging.getLogger("vkinductor.serve")

SHUTTING_DOWN = "the server is shutting down"
DEVICE_LOST = "the Vulkan device was lost: the server has to be restarted"


class Worker:
    """Runs jobs on the engine that ``make_engine`` gives, both on a thread of its own.

    Everything that touches the engine happens on that thread, loading included: torch keeps state for each thread.
    All methods may be called from any other thread.
    """

    def __init__(self, make_engine: Callable[[], Engine]) -> None:
        self._make_engine = make_engine
        self._ready: Future[Engine] = Future()
        self._condition = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._refusal: str | None = None  # why no job is taken any more
        self._tokenizer: SharedTokenizer | None = None
        self._job_seconds = 1.0  # running mean
        # A daemon: a process that is told to end twice does not wait for a compilation.
        self._thread = threading.Thread(target=self._work, name="vkinductor-serve-worker", daemon=True)

    def start(self) -> Engine:
        """Start the thread and wait for the engine; raises what making it raised."""
        self._thread.start()
        return self._ready.result()

    @property
    def tokenizer(self) -> SharedTokenizer:
        """The engine's tokenizer, which this thread and those of requests share. Only after `start`."""
        assert self._tokenizer is not None, "start() comes first"
        return self._tokenizer

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue; its events come through ``job.deliver``. Raises UnavailableError."""
        with self._condition:
            if self._refusal is not None:
                raise UnavailableError(self._refusal)
            self._waiting.append(job)
            self._condition.notify()

    def cancel(self, job: Job) -> None:
        """Give a job up, wherever it is; one that has ended already is left alone."""
        job.cancel()
        with self._condition:
            if job in self._waiting:
                self._waiting.remove(job)

    def drain(self) -> None:
        """Take no more jobs and refuse those that wait; the one that runs goes on."""
        self._refuse(SHUTTING_DOWN)

    def close(self, seconds: float | None = None) -> bool:
        """Drain, cancel what runs and end the thread. Whether it ended within `seconds` (None: however long)."""
        self.drain()
        with self._condition:
            running = self._running
        if running is not None:
            running.deliver(Failed(UnavailableError(SHUTTING_DOWN)))
            running.cancel()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Jobs in the queue, without the one that runs."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return self._running is not None

    @property
    def refusal(self) -> str | None:
        """Why no job is taken any more; None while they are."""
        return self._refusal

    def seconds_until_free(self, ahead: int) -> float:
        """A guess of how long `ahead` jobs take, by those that ran."""
        return ahead * self._job_seconds

    def _refuse(self, reason: str) -> None:
        with self._condition:
            self._refusal = self._refusal or reason
            refused = list(self._waiting)
            self._waiting.clear()
            self._condition.notify_all()
        for job in refused:
            job.deliver(Failed(UnavailableError(reason)))

    def _work(self) -> None:
        try:
            engine = self._make_engine()
            self._tokenizer = SharedTokenizer(engine.tokenizer)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(engine)
        while (job := self._next()) is not None:
            if not job.cancelled():
                self._run(engine, job)
            with self._condition:
                self._running = None

    def _next(self) -> Job | None:
        with self._condition:
            while not self._waiting:
                if self._refusal is not None:
                    return None
                self._condition.wait()
            self._running = self._waiting.popleft()
            return self._running

    def _run(self, engine: Engine, job: Job) -> None:
        job.began = time.monotonic()
        try:
            for event in generate(engine, self.tokenizer.decode, job):
                job.deliver(event)
        except DeviceLostError as error:
            LOG.error("device lost: %s", error)
            job.deliver(Failed(UnavailableError(DEVICE_LOST)))
            self._refuse(DEVICE_LOST)
        except Exception as error:  # whatever it is, the next job may go well
            if not isinstance(error, ModelError):  # those are about the request
                LOG.exception("generation failed")
            job.deliver(Failed(_as_api_error(error)))
        self._job_seconds += 0.2 * (time.monotonic() - job.began - self._job_seconds)


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, PromptTooLongError):
        return ContextLengthError(str(error))
    if isinstance(error, ModelError):
        return InvalidRequestError(str(error))
    return GenerationError("generation failed; the server's log has the reason")
