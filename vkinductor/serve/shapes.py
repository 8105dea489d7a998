"""OpenAI's JSON for answers: whole ones and the chunks of streams, for chats and for completions."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

# Line borders for readers that split streams as Python splits strings. JSON may hold them as they are.
_BORDERS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_BORDER_TABLE = str.maketrans(_BORDERS)


@dataclass(frozen=True)
class Usage:
    """Tokens of a prompt and of its answer."""

    prompt: int
    new: int

    def body(self) -> dict[str, int]:
        """OpenAI's names for them."""
        return {"prompt_tokens": self.prompt, "completion_tokens": self.new, "total_tokens": self.prompt + self.new}


class Shape:
    """What the answers to one request have in common: an id, a time, a model. See `ChatShape`, `CompletionShape`.

    ``include_usage`` adds ``usage`` to each chunk, which is null in all but one more at the end.
    """

    prefix = ""
    whole_object = ""
    chunk_object = ""

    def __init__(self, model: str, include_usage: bool = False) -> None:
        self.include_usage = include_usage
        self._model = model
        self._id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def whole(self, text: str, reason: str, usage: Usage) -> dict[str, Any]:
        """A whole answer."""
        return {**self._head(self.whole_object), "choices": [self._answer(text, reason)], "usage": usage.body()}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first text."""
        return []

    def piece(self, text: str) -> dict[str, Any]:
        """A chunk of new text."""
        return self._chunk([self._part(text, None)])

    def closing(self, reason: str, usage: Usage) -> list[dict[str, Any]]:
        """Chunks after the last text: the reason of the end, the usage."""
        chunks = [self._chunk([self._part("", reason)])]
        if self.include_usage:
            chunks.append({**self._chunk([]), "usage": usage.body()})
        return chunks

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head(self.chunk_object), "choices": choices}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _answer(self, text: str, reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def _part(self, text: str, reason: str | None) -> dict[str, Any]:
        raise NotImplementedError


class ChatShape(Shape):
    """Answers of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """The role comes first, without text."""
        return [self._chunk([self._delta({"role": "assistant", "content": ""}, None)])]

    def _answer(self, text: str, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}

    def _part(self, text: str, reason: str | None) -> dict[str, Any]:
        return self._delta({"content": text} if text else {}, reason)

    def _delta(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


class CompletionShape(Shape):
    """Answers of /v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def _answer(self, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    _part = _answer


def encode(body: dict[str, Any]) -> bytes:
    """JSON in UTF-8 on one line, whatever a reader takes for the border of one."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_BORDER_TABLE).encode("utf-8", "backslashreplace")


def event(body: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


DONE = b"data: [DONE]\n\n"
COMMENT = b": \n\n"
"""Says nothing: keeps proxies from closing a connection on which nothing comes."""
