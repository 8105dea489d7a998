"""Worker processes: tasks go in, results come out, and a worker that dies or hangs costs one task.

A task is an entry in a dtype. The task that a worker died of is run again one variant at a time, so that a crash is the
variant's.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vkinductor.conformance.check import VARIANTS, Verdict


class Task(NamedTuple):
    """An entry in a dtype (both by name), and the variants to check."""

    entry: str
    dtype: str
    variants: tuple[str, ...] = VARIANTS
    limit: int | None = None


class WorkerDied(Exception):
    """The worker's process ended, or was ended for taking too long."""


COMMAND = (sys.executable, "-W", "ignore", "-m", "vkinductor.conformance.worker")


class Worker:
    """A process that checks tasks one after another, started when there is one. timeout: seconds for a task."""

    def __init__(self, timeout: float, command: Sequence[str] = COMMAND, device: str | None = None) -> None:
        self._timeout, self._command, self._device = timeout, command, device
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def check(self, task: Task) -> dict[str, Any]:
        """Verdicts by variant, as JSON has them.

        Raises:
            WorkerDied: no answer within the timeout, or the process is gone; the next call starts another.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=None if self._device is None else {**os.environ, "VKINDUCTOR_DEVICE": self._device},
                text=True,
                bufsize=1,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task._asdict()) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                ready = selector.select(self._timeout)
            answer = process.stdout.readline() if ready else ""
        except OSError:
            answer = ""
        if answer:
            found: dict[str, Any] = json.loads(answer)
            return found
        code = _exit_code(process)
        self.close()
        if code is None:
            raise WorkerDied(f"no answer in {self._timeout:g} s")
        raise WorkerDied(f"the process ended with {code}: {self._last_words()}".rstrip(": "))

    def _last_words(self) -> str:
        """The last line that workers have written to stderr."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


def _exit_code(process: subprocess.Popen[str]) -> int | None:
    """Of a process that has closed its output and so is about to end, None when it goes on."""
    try:
        return process.wait(0.5)
    except subprocess.TimeoutExpired:
        return None


def run(
    tasks: Sequence[Task],
    workers: int,
    timeout: float,
    done: Callable[[Task, dict[str, Any]], None],
    command: Sequence[str] = COMMAND,
    devices: Sequence[str] = (),
    seconds: float | None = None,
) -> None:
    """Check all tasks; `done` is called for each, from several threads but never at the same time.

    devices: the workers take turns with these (values of VKINDUCTOR_DEVICE). seconds: no task is begun after that.
    """
    end = time.monotonic() + (float("inf") if seconds is None else seconds)
    left: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        left.put(task)
    lock, stop = threading.Lock(), threading.Event()

    def serve(number: int) -> None:
        worker = Worker(timeout, command, devices[number % len(devices)] if devices else None)
        try:
            while not stop.is_set() and time.monotonic() < end:
                try:
                    task = left.get_nowait()
                except queue.Empty:
                    return
                found = _checked(worker, task)
                with lock:
                    done(task, found)
        finally:
            worker.close()

    count = max(1, min(workers, len(tasks)))
    threads = [threading.Thread(target=serve, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)
    finally:
        stop.set()


def _checked(worker: Worker, task: Task) -> dict[str, Any]:
    try:
        return worker.check(task)
    except WorkerDied as died:
        if len(task.variants) == 1:
            return {task.variants[0]: vars(Verdict("crash", str(died)))}
    found: dict[str, Any] = {}
    for variant in task.variants:
        found |= _checked(worker, task._replace(variants=(variant,)))
    return found
