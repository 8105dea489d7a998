"""One generation on its way through the queue: what is asked for, what comes back, whether anybody still wants it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vkinductor.llm.sampling import SamplingOptions
from vkinductor.serve.errors import ApiError

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """New text, never empty."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The end of a text: why, and its tokens, a stop token not counted. The last event of a job that succeeds."""

    reason: FinishReason
    tokens: int


@dataclass(frozen=True)
class Failed:
    """The last event of a job that does not succeed."""

    error: ApiError


Event = Piece | Finished | Failed


class Job:
    """A prompt (token ids), options and stop strings. ``deliver`` gets the events, called from the worker's thread.

    After ``cancel`` nothing more is delivered, and the worker turns to the next job at its next token.
    """

    def __init__(
        self,
        prompt: tuple[int, ...],
        options: SamplingOptions,
        stops: tuple[str, ...],
        deliver: Callable[[Event], None],
    ) -> None:
        self.prompt = prompt
        self.options = options
        self.stops = stops
        self.created = time.monotonic()
        self.began: float | None = None
        """When the worker took it, on the clock of ``created`` (seconds); None while it waits."""
        self._deliver = deliver
        self._cancelled = threading.Event()

    def deliver(self, event: Event) -> None:
        """Hand an event to who waits for it. A receiver that is gone cancels the job."""
        if self.cancelled():
            return
        try:
            self._deliver(event)
        except RuntimeError:  # its event loop is closed
            self.cancel()

    def cancel(self) -> None:
        """Give up: from any thread, any number of times."""
        self._cancelled.set()

    def cancelled(self) -> bool:
        """Whether nobody waits any more."""
        return self._cancelled.is_set()
