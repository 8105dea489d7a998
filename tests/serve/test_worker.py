"""The queue and its thread: order, giving up, refusing, ending."""

from __future__ import annotations

import queue
import threading

import pytest
from fake_engine import FakeEngine

from vkinductor.llm.errors import UnknownOptionError
from vkinductor.llm.sampling import SamplingOptions
from vkinductor.serve.errors import ApiError, ContextLengthError, GenerationError, UnavailableError
from vkinductor.serve.jobs import Failed, Finished, Job, Piece
from vkinductor.serve.worker import Worker


class Waiting(Job):
    """A job whose events are collected."""

    def __init__(self, text: str = "ab", **options):
        self.events: queue.Queue = queue.Queue()
        super().__init__(tuple(text.encode()), SamplingOptions(**options), (), self.events.put)

    def result(self):
        """Text and the last event."""
        text = ""
        while isinstance(event := self.events.get(timeout=30), Piece):
            text += event.text
        return text, event


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def worker(engine, log):
    worker = Worker(lambda: engine)
    assert worker.start() is engine
    yield worker
    assert worker.close(30)


def test_first_come_first_served(worker, engine):
    engine.gate.clear()
    jobs = [Waiting(text) for text in ("one", "two", "three")]
    for job in jobs:
        worker.submit(job)
    engine.gate.set()
    assert [job.result() for job in jobs] == [(text, Finished("stop", len(text))) for text in ("one", "two", "three")]
    assert engine.threads == {"vkinductor-serve-worker"}


def test_an_engine_that_cannot_be_made():
    def fail():
        raise ValueError("no such model")

    worker = Worker(fail)
    with pytest.raises(ValueError, match="no such model"):
        worker.start()
    assert worker.close(30)


def test_the_engine_is_made_on_the_thread_that_uses_it(engine):
    made = []

    def make():
        made.append(threading.current_thread().name)
        return engine

    worker = Worker(make)
    worker.start()
    job = Waiting()
    worker.submit(job)
    job.result()
    worker.close(30)
    assert set(made) == engine.threads


def test_giving_up(worker, engine):
    engine.gate.clear()
    first, second, third = Waiting("one"), Waiting("two"), Waiting("three")
    for job in (first, second, third):
        worker.submit(job)
    assert engine.began.wait(30)
    worker.cancel(second)  # waits
    assert worker.waiting == 1
    worker.cancel(first)  # runs
    engine.gate.set()
    assert third.result() == ("three", Finished("stop", 5))
    worker.cancel(third)  # has ended
    assert first.events.empty()
    assert second.events.empty()
    assert [bytes(prompt) for prompt in engine.prompts] == [b"one", b"three"]


def test_errors_and_what_comes_after_them(worker, engine):
    too_long, unknown, broken, fine = Waiting("x" * engine.context), Waiting(), Waiting(), Waiting()
    worker.submit(too_long)
    assert isinstance(too_long.result()[1].error, ContextLengthError)
    engine.error = UnknownOptionError("no such token")
    worker.submit(unknown)
    assert unknown.result()[1].error.status == 400
    engine.error = RuntimeError("x")
    worker.submit(broken)
    assert isinstance(broken.result()[1].error, GenerationError)
    engine.error = None
    worker.submit(fine)
    assert fine.result()[1] == Finished("stop", 2)


def test_a_receiver_that_is_gone(worker, engine):
    def gone(event):
        raise RuntimeError("Event loop is closed")

    engine.endless = True
    worker.submit(Job((65,), SamplingOptions(tokens=100), (), gone))
    engine_is_free = Waiting(tokens=1)
    worker.submit(engine_is_free)
    assert engine_is_free.result()[1] == Finished("length", 1)
    assert engine.produced < 10


def test_draining(worker, engine):
    engine.gate.clear()
    running, waiting = Waiting(), Waiting()
    worker.submit(running)
    assert engine.began.wait(30)
    worker.submit(waiting)
    worker.drain()
    assert isinstance(waiting.result()[1].error, UnavailableError)
    with pytest.raises(UnavailableError, match="shutting down"):
        worker.submit(Waiting())
    engine.gate.set()
    assert running.result()[1] == Finished("stop", 2)


def test_closing_ends_what_runs(engine):
    worker = Worker(lambda: engine)
    worker.start()
    engine.gate.clear()
    job = Waiting()
    worker.submit(job)
    assert engine.began.wait(30)
    assert worker.close(30)
    text, last = job.result()
    assert text == ""
    assert isinstance(last, Failed)
    assert isinstance(last.error, ApiError)
    assert last.error.status == 503
    assert worker.close(30)


def test_a_stop_token_that_the_engine_passes_on(worker, engine):
    engine.reply = "xyz"
    job = Waiting(stop=(ord("y"),))
    worker.submit(job)
    assert job.result() == ("x", Finished("stop", 1))
