"""The engine's tokenizer behind a lock: requests are encoded on one thread while another decodes what is generated.

Owns whose turn it is, and conversations for models without a chat template. Leaves encoding to llm/prompts.py and
checking lengths to prompts.py here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from vkinductor.llm import prompts
from vkinductor.llm.errors import PromptRefusedError
from vkinductor.serve.errors import InvalidRequestError

# How a conversation reads for a model without a chat template: one line a turn, and the end of the model's own turn
# is where it begins to write the user's.
PLAIN_ROLES = {"system": "System", "user": "User", "assistant": "Assistant"}
PLAIN_STOP = "\nUser:"


class SharedTokenizer:
    """A tokenizer with the interface of `transformers`, for any thread. The libraries' own refuse two at a time."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    @property
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    @property
    def vocabulary(self) -> int | None:
        """Number of token ids, added ones included; None when the tokenizer does not tell."""
        try:
            return len(self._tokenizer)
        except TypeError:
            return None

    @property
    def beginning(self) -> int | None:
        """The token that begins a text, if the model has one."""
        return getattr(self._tokenizer, "bos_token_id", None)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, with what the model wants at its beginning."""
        with self._lock:
            return tuple(self._tokenizer.encode(text))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a conversation (``role``, ``content``) up to where the assistant's next turn begins.

        Raises InvalidRequestError when the model's template refuses the conversation.
        """
        if not self.has_template:
            return self.encode(plain_chat(messages))
        with self._lock:
            try:
                return tuple(prompts.encode_conversation(self._tokenizer, messages))
            except PromptRefusedError as error:
                raise InvalidRequestError(str(error), param="messages") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        with self._lock:
            return prompts.decode(self._tokenizer, tokens)


def plain_chat(messages: Sequence[Mapping[str, str]]) -> str:
    """A conversation as text for a model that was not trained on one: "User: ...", "Assistant: ..."."""
    lines = [f"{PLAIN_ROLES[message['role']]}: {message['content']}" for message in messages]
    return "\n".join([*lines, f"{PLAIN_ROLES['assistant']}:"])
