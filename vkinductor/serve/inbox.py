"""Where a request waits: events of its job from the worker's thread, and what else may happen, in one queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from vkinductor.serve.jobs import Event, Piece


@dataclass(frozen=True)
class HungUp:
    """The client is gone."""


@dataclass(frozen=True)
class Silence:
    """Nothing has to be said, but some time has passed."""


News = Event | HungUp | Silence


class Inbox:
    """Made and read on an event loop; `deliver` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[News] = asyncio.Queue()
        self._next: News | None = None
        self._timer: asyncio.TimerHandle | None = None

    def deliver(self, event: News) -> None:
        """Add news. Raises RuntimeError when the loop is closed."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    def tick(self, seconds: float) -> None:
        """From now on add `Silence` every so many seconds, until `close`."""
        self._timer = self._loop.call_later(seconds, self._ticked, seconds)

    def close(self) -> None:
        """End what `tick` began."""
        if self._timer is not None:
            self._timer.cancel()

    async def get(self) -> News:
        """The next news; text that has come together meanwhile is one piece."""
        news = await self._queue.get() if self._next is None else self._next
        self._next = None
        texts = []
        while isinstance(news, Piece):
            texts.append(news.text)
            if self._queue.empty():
                return Piece("".join(texts))
            news = self._queue.get_nowait()
        if texts:
            self._next = news
            return Piece("".join(texts))
        return news

    def _ticked(self, seconds: float) -> None:
        self._queue.put_nowait(Silence())
        self.tick(seconds)
