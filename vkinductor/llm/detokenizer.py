"""Text from tokens as they come: a character whose bytes are spread over tokens appears when it is whole.

The pieces joined are what the tokenizer makes of all tokens at once. A token alone has no text: byte-level vocabularies
cut characters in two, and SentencePiece's drop a space at the start of whatever they decode. So a window of the last
tokens is decoded each time and what is new of its text is given out; the window restarts at the border of a
character, and a few tokens of the past stay in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"

# An unfinished character of UTF-8 has at most three bytes, and decoders show one replacement for all of them or one
# for each: more than three at the end are not a character that is still coming.
UNFINISHED = 3

# Tokens in the window: decoding costs microseconds for each, restarting one more decoding.
WINDOW = 24

# Without one border in this many tokens the bytes are no text: the window restarts anyway, or it would grow for ever.
WINDOW_AT_MOST = 4 * WINDOW


class Detokenizer:
    """The text of one sequence. ``decode`` gives the text of token ids, U+FFFD for bytes that are no character."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._text = ""
        self._given = 0  # characters of the window's text that are out
        self._border = 0  # tokens of the window up to the last border of a character

    def push(self, token: int) -> str:
        """The text that `token` completes; often "" and sometimes more than its own."""
        self._window.append(token)
        given, self._text = self._text[: self._given], self._decode(self._window)
        if not self._text.startswith(given) and len(self._window) - self._border <= UNFINISHED:
            # Byte fallback shows a run of bytes as replacements until all of it is UTF-8: what was out is in doubt too.
            self._text = given
            return ""
        unfinished = _unfinished(self._text)
        new = self._give(len(self._text) - unfinished)
        if new and not unfinished:  # a token without text stays with the next: what the window begins with has text
            if len(self._window) >= WINDOW:
                self._restart(self._border)
            self._border = len(self._window)
        elif len(self._window) >= WINDOW_AT_MOST:
            self._restart(len(self._window) - UNFINISHED)
        return new

    def flush(self) -> str:
        """What is left at the end: replacements for a character that never was finished."""
        self._text = self._decode(self._window)
        return self._give(len(self._text))

    def _give(self, end: int) -> str:
        new = self._text[self._given : end]
        self._given = max(self._given, end)
        return new

    def _restart(self, first: int) -> None:
        self._window = self._window[first:]
        self._text = self._decode(self._window)
        self._given = len(self._text) - _unfinished(self._text)
        self._border = 0


def _unfinished(text: str) -> int:
    """How many replacements at the end may still become a character."""
    tail = text[-UNFINISHED:]
    return len(tail) - len(tail.rstrip(REPLACEMENT))
