"""How many requests are inside: counted from their headers on, so that bodies and prompts are bounded as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vkinductor.serve.errors import QueueFullError

RETRY_AT_MOST = 60  # seconds


class Admission:
    """Places for ``size`` requests; used on the event loop alone. ``seconds`` guesses how long that many take."""

    def __init__(self, size: int, seconds: Callable[[int], float]) -> None:
        self._size = size
        self._seconds = seconds
        self.inside = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place while the block runs. Raises QueueFullError when there is none."""
        if self.inside >= self._size:
            # Room for one more appears when one ends; with this many who try again, a part of the queue is kinder.
            wait = min(RETRY_AT_MOST, max(1, math.ceil(self._seconds(max(1, self.inside // 8)))))
            raise QueueFullError(f"{self.inside} requests are waiting, which is the limit: try again in {wait} s", wait)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
