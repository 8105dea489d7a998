"""What a server accepts at most. Every limit is checked before the work that it bounds is done."""

from __future__ import annotations

from dataclasses import dataclass

from vkinductor.llm.errors import UnknownOptionError


@dataclass(frozen=True)
class Limits:
    """Limits of one server. Raises UnknownOptionError for values below 1.

    ``queue``: requests inside at a time, the one that generates included; each holds at most ``body_bytes`` of body.
    ``body_seconds``: to receive a body in. ``stops``/``stop_characters``: stop strings of a request, and the
    length of each, which is also how much text may be held back while one could still match.
    """

    queue: int = 512
    body_bytes: int = 2 << 20
    body_seconds: float = 30.0
    messages: int = 1024
    stops: int = 16
    stop_characters: int = 256

    def __post_init__(self) -> None:
        for name in ("queue", "body_bytes", "messages", "stops", "stop_characters"):
            if getattr(self, name) < 1:
                raise UnknownOptionError(f"{name} must be at least 1, not {getattr(self, name)}")
