"""A progress line for work that takes long: what is running, for how long, and a detail that changes.

On a terminal one line is rewritten twice a second. Elsewhere (a log file, CI) each stage prints a line when
it starts, one every half minute so that the log shows life, and one when it ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

TERMINAL_PERIOD = 0.5  # seconds
LOG_PERIOD = 30.0  # seconds


class Progress:
    """Prints stages to `stream` (stderr by default). `detail` is called for the changing part of the line."""

    def __init__(self, stream: TextIO | None = None, detail: Callable[[], str] | None = None):
        self.stream = stream if stream is not None else sys.stderr
        self.detail = detail
        self._terminal = self.stream.isatty()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show `name` with the seconds it takes, until the block ends; a failed block says so."""
        start = time.monotonic()
        done = threading.Event()
        if not self._terminal:
            self._write(f"{name} ...\n")
        ticker = threading.Thread(target=self._tick, args=(name, start, done), daemon=True)
        ticker.start()
        outcome = "done"
        try:
            yield
        except BaseException:
            outcome = "failed"
            raise
        finally:
            done.set()
            ticker.join()
            self._line(name, start, outcome, end="\n")

    def _tick(self, name: str, start: float, done: threading.Event) -> None:
        period = TERMINAL_PERIOD if self._terminal else LOG_PERIOD
        while not done.wait(period):
            self._line(name, start, "", end="" if self._terminal else "\n")

    def _line(self, name: str, start: float, outcome: str, end: str) -> None:
        parts = [f"{time.monotonic() - start:.0f} s"]
        if self.detail is not None and (detail := self.detail()):
            parts.append(detail)
        if outcome:
            parts.append(outcome)
        text = f"{name}: {', '.join(parts)}"
        # \x1b[K clears what a longer earlier line left behind.
        self._write(f"\r\x1b[K{text}{end}" if self._terminal else f"{text}{end}")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
