"""Prompts to token ids and token ids to text, with a tokenizer that has the interface of `transformers`' own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vkinductor.llm.errors import PromptRefusedError

Message = Mapping[str, str]


def encode(tokenizer: Any, prompt: str | Sequence[int] | Sequence[Message]) -> list[int]:
    """Token ids of a text, a conversation, or token ids as they are.

    A text is one user turn where the tokenizer has a chat template. Raises PromptRefusedError when the template refuses
    the conversation.
    """
    if isinstance(prompt, str):
        if not getattr(tokenizer, "chat_template", None):
            return list(tokenizer.encode(prompt))
        prompt = [{"role": "user", "content": prompt}]
    if prompt and isinstance(prompt[0], Mapping):
        return encode_conversation(tokenizer, prompt)  # type: ignore[arg-type]
    return [int(token) for token in prompt]  # type: ignore[arg-type]


def encode_conversation(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation (``role``, ``content``) up to where the assistant's next turn begins.

    Without a chat template: the contents, a line each.
    """
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer.encode("\n".join(message["content"] for message in messages)))
    try:
        # As text first: what `tokenize=True` returns differs between versions of the library.
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # a template is a program: it raises what it likes
        raise PromptRefusedError(f"the model's chat template refuses this conversation: {error}") from error
    return list(tokenizer.encode(text, add_special_tokens=False))  # the template has written those


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Text of token ids, special tokens left out."""
    # Cleaning up would take back a space that is out already when a comma follows it.
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))
