"""Threads that compile kernels nobody waits for yet, and the gate that keeps a fork away from a compiler at work.

Owns the threads: they start with the first job and never outlive the device. What a job does is the caller's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

# Compiling releases the interpreter lock; what asks for kernels, Inductor, holds it and one core.
THREADS = max(1, min(4, (os.cpu_count() or 1) - 1))


class CompileThreads:
    """A few threads, and the count of everybody who is inside a compiler."""

    def __init__(self) -> None:
        self._gate = threading.Condition()
        self._pool: ThreadPoolExecutor | None = None
        self._inside = 0
        self._paused = False
        self._closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job``, which must not raise, on one of the threads. After ``close`` nothing happens."""
        with self._gate:
            if self._closed:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="vkinductor-compile")
            self._pool.submit(job)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Around each call of a compiler or of the driver's, on whatever thread; waits while a fork goes on."""
        with self._gate:
            self._gate.wait_for(lambda: not self._paused)
            self._inside += 1
        try:
            yield
        finally:
            with self._gate:
                self._inside -= 1
                self._gate.notify_all()

    def pause(self) -> None:
        """Before a fork: wait until no thread is inside a compiler, whose state a child could neither use nor end."""
        with self._gate:
            self._paused = True
            self._gate.wait_for(lambda: not self._inside)

    def resume(self) -> None:
        """After a fork, in the parent: go on compiling."""
        with self._gate:
            self._paused = False
            self._gate.notify_all()

    def close(self) -> None:
        """Drop jobs that have not begun and wait for those that have. Idempotent."""
        with self._gate:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:  # without the gate, which its threads need
            pool.shutdown(wait=True, cancel_futures=True)
