"""Measuring one problem: candidates are compiled, checked, timed, and one is chosen.

Everything happens on the thread that compiles eager operators (eager/program.py), because the caller may be in the
middle of a compilation. Pipelines are made on further threads while the first candidates are timed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from vkinductor.runtime import context
from vkinductor.runtime.errors import DeviceLostError, VulkanError
from vkinductor.runtime.replay.capture import CaptureRefused
from vkinductor.runtime.stats import counters

from ..eager.program import in_clean_thread
from . import build, compare
from .clock import Clock
from .family import Family, Operation, pruned
from .results import Result, Row, results
from .select import Times, select
from .workspace import Runner, Workspace

log = logging.getLogger(__name__)

# The part of the time in which candidates are lowered; those that are not by then are late.
_LOWERING = 0.75
# That make pipelines; one takes 0.05 to 4 s on NVIDIA.
_THREADS = max(1, min(16, (os.cpu_count() or 1) - 1))


class NothingWorksError(VulkanError):
    """No candidate of a problem was timed; the message says what is wrong with each. ``late``: or had no time."""

    late = False


class Listener(Protocol):
    """Told how measuring goes on: ``done`` of ``total`` candidates, and what happens with one."""

    def __call__(self, done: int, total: int, what: str) -> None: ...


@dataclass
class _Timings:
    """When time is up. ``now``: a clock, seconds."""

    seconds: float
    now: Callable[[], float]
    start: float = field(init=False)
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.start = self.now()

    def left(self, part: float = 1.0) -> float:
        """Seconds until ``part`` of the time is over."""
        return 0.0 if self.stopped.is_set() else self.start + part * self.seconds - self.now()


def tune(
    family: Family, problem: Any, seconds: float, listener: Listener | None = None, now: Any = time.monotonic
) -> Result | None:
    """Measure the candidates of ``problem`` for about ``seconds``; not stored yet.

    None when there is nothing to choose from. A candidate's error is a row of the result.

    Raises NothingWorksError, DeviceLostError when a candidate took the device with it, and VulkanOutOfMemoryError when
    the operands do not fit.
    """
    limit = _Timings(seconds, now)
    try:
        return in_clean_thread(lambda: _Tuning(family, problem, limit, listener).result())
    except BaseException:
        limit.stopped.set()  # an interrupt reaches this thread, and the other one ends soon
        raise


class _Tuning:
    """Everything about one problem; used once."""

    def __init__(self, family: Family, problem: Any, limit: _Timings, listener: Listener | None) -> None:
        self.family = family
        self.problem = problem
        self.limit = limit
        self.device = context.get()
        self.candidates = pruned(family, self.device.info, problem)
        self.labels = [family.label(candidate) for candidate in self.candidates]
        self.rows: dict[str, Row] = {}
        self._listener = listener
        self._reference: list[torch.Tensor] | None = None
        self._suspects: set[str] = set()
        self._timed: set[str] = set()

    def result(self) -> Result | None:
        if len(self.candidates) < 2:
            return None
        operation = self.family.operation(self.problem)
        if operation.prepare is not None:
            operation.prepare(self.candidates)
        self._suspects = results().suspects(self.family, self.family.bucket(self.problem))
        workspace = Workspace(self.device, operation)
        clock = Clock(self.device)
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="vkinductor-tuning")
        try:
            runners = self._right(operation, workspace, pool)
            baseline = self.labels[0]
            by_label: dict[str, Runner] = {}

            def labels() -> Iterator[str]:
                for label, runner in runners:
                    by_label[label] = runner
                    yield label

            def sample(label: str) -> Times:
                self._tell(label)
                counters.timings += label not in self._timed
                self._timed.add(label)
                return by_label[label].sample(clock)

            choice, measured = select(labels(), sample, lambda part: self.limit.left(part) <= 0, baseline)
            for m in measured:
                waiting, independent = map(float, m.times)
                self.rows[m.candidate] = Row(m.candidate, "ok", waiting, independent=independent)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self.device.stream.synchronize()
            clock.close()
            workspace.close()
        for label in self.labels:
            self.rows.setdefault(label, Row(label, "late"))
        rows = tuple(self.rows[label] for label in self.labels)
        for row in rows:
            if row.status in ("wrong", "failed"):
                log.warning(
                    "%s %s: candidate %s is dropped, %s", *self._about, row.label, f"{row.status}: {row.detail}"
                )
        if choice is None:
            found = "; ".join(f"{row.label}: {row.status} {row.detail}".strip() for row in rows)
            error = NothingWorksError(f"{' '.join(self._about)}: no candidate could be timed ({found})")
            error.late = any(row.status == "late" for row in rows)
            raise error
        complete = all(row.status != "late" for row in rows)
        bucket = self.family.bucket(self.problem)
        nbytes, flops = operation.nbytes, operation.flops
        return Result(self.family.name, bucket, choice, baseline, rows, nbytes, flops, complete)

    @property
    def _about(self) -> tuple[str, str]:
        return self.family.name, str(self.family.bucket(self.problem))

    def _tell(self, what: str) -> None:
        if self._listener is not None:
            self._listener(len(self.rows) + len(self._timed), len(self.labels), what)

    def _drop(self, label: str, status: str, detail: str) -> None:
        self.rows[label] = Row(label, status, detail=detail)

    def _lowered(self, operation: Operation, pool: ThreadPoolExecutor) -> Iterator[tuple[str, Future[build.Built]]]:
        """Candidates whose pipelines are being made, in their order, each lowered when it is asked for."""
        for candidate, label in zip(self.candidates, self.labels, strict=True):
            if label != self.labels[0] and self.limit.left(_LOWERING) <= 0:
                return
            if label in self._suspects:
                self._drop(label, "failed", "a process that ran it ended there")
                continue
            self._tell(f"compiling {label}")
            try:
                forced = functools.partial(self.family.forced, candidate)
                program = build.program_of(operation, candidate, forced)
            except Exception as error:  # Inductor wraps errors in its own
                self._drop(label, "failed", _first_line(error))
                continue
            yield label, pool.submit(build.captured, program, operation.operands)

    def _built(self, operation: Operation, pool: ThreadPoolExecutor) -> Iterator[tuple[str, Future[build.Built]]]:
        """Candidates whose pipelines are made, or failed to be, as they become ready; the first one first, because all
        others are compared with it. Between them further ones are lowered, as long as threads are idle."""
        lowered = self._lowered(operation, pool)
        making: list[tuple[str, Future[build.Built]]] = []
        begun, more, due = False, True, True
        while self.limit.left() > 0 and (more or making):
            awaited = making if begun else making[:1]
            ready = next((one for one in awaited if one[1].done()), None)
            idle = sum(not future.done() for _, future in making) < _THREADS
            if more and (ready is None or (idle and due)):
                found = next(lowered, None)
                more, due = found is not None, False
                making += [] if found is None else [found]
            elif ready is None:
                wait([future for _, future in awaited], timeout=0.05, return_when="FIRST_COMPLETED")
            else:
                begun = due = True
                making.remove(ready)
                yield ready

    def _right(
        self, operation: Operation, workspace: Workspace, pool: ThreadPoolExecutor
    ) -> Iterator[tuple[str, Runner]]:
        """Candidates that compute what they should, as they become ready; the heuristic's choice first."""
        for label, future in self._built(operation, pool):
            try:
                runner = Runner(future.result(), workspace)
                with self._suspected(label):
                    wrong = self._wrong(operation, workspace, runner, label)
            except DeviceLostError:
                raise
            except CaptureRefused as error:
                refused = f"it does other things than launch kernels: {error}"
                if label == self.labels[0]:
                    # It runs all the same, and what is slower might be taken in its place.
                    raise NothingWorksError(f"{' '.join(self._about)}: {label} cannot be timed, {refused}") from error
                self._drop(label, "failed", refused)
                continue
            except Exception as error:
                self._drop(label, "failed", _first_line(error))
                continue
            if wrong is not None:
                self._drop(label, "wrong", wrong)
                continue
            yield label, runner

    @contextlib.contextmanager
    def _suspected(self, label: str) -> Iterator[None]:
        """Around the first run of a candidate: if this process does not come back, the next one leaves it out."""
        bucket = self.family.bucket(self.problem)
        results().suspect(self.family, bucket, {*self._suspects, label})
        try:
            yield
        except DeviceLostError:
            raise
        except BaseException:
            results().suspect(self.family, bucket, self._suspects)
            raise
        results().suspect(self.family, bucket, self._suspects)

    def _wrong(self, operation: Operation, workspace: Workspace, runner: Runner, label: str) -> str | None:
        got = runner.results()
        if self._reference is not None:
            return compare.differences(got, self._reference, operation.tolerance)
        if operation.check is not None:
            wrong = operation.check(workspace.values, got[0])
        else:
            wrong = None if label == self.labels[0] else "the heuristic's choice did not run to compare it with"
        if wrong is None:
            self._reference = got
        return wrong


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:300]
