"""Tokens to pieces of text as they come: whole characters, up to a stop text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vkinductor.llm.detokenizer import Detokenizer
from vkinductor.llm.prompts import decode
from vkinductor.llm.stops import StopMatcher


def pieces(tokenizer: Any, tokens: Iterable[int], stops: Sequence[str] = ()) -> Iterator[str]:
    """The text of `tokens` in pieces that are whole characters; it ends before the first of `stops`.

    Takes no token from `tokens` behind a stop: close that iterator if it should not wait for more.
    """
    text, matcher = Detokenizer(lambda ids: decode(tokenizer, ids)), StopMatcher(tuple(stops))
    for token in tokens:
        if piece := matcher.push(text.push(token)):
            yield piece
        if matcher.matched is not None:
            return
    if piece := matcher.push(text.flush()):
        yield piece
    if matcher.matched is None and (piece := matcher.flush()):
        yield piece
