"""Where a text ends: a model's end tokens, and stop strings, matched on text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopMatcher:
    """Passes text on up to the first of `stops`, which is left out; what could become one is held back until it
    cannot: a match may begin in one piece and end in a later one.

    Of several matches the one that is complete first ends the text, of those the one that begins first. ``stops`` must
    not hold "".
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=1)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """What is certain of the text so far and not given yet. After a match (``matched``): what stood before it."""
        if self.matched is not None:
            return ""
        text = self._held + text
        if found := self._first(text):
            begin, self.matched = found
            self._held = ""
            return text[:begin]
        keep = self._candidate(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, when no more comes."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        matches = [(begin + len(stop), begin, stop) for stop in self._stops if (begin := text.find(stop)) >= 0]
        if not matches:
            return None
        _, begin, stop = min(matches)
        return begin, stop

    def _candidate(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


def stop_tokens_of(model: Any) -> tuple[int, ...]:
    """The token ids that end a text, as the model's generation config names them."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ends is None:
        return ()
    return tuple(ends) if isinstance(ends, (list, tuple)) else (ends,)
