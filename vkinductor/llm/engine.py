"""What a server or a command needs of a model that generates: tokens in, a stream of tokens out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from vkinductor.llm.sampling import SamplingOptions


class Engine(Protocol):
    """One model on a device. Not thread-safe: one generation at a time, from one thread."""

    name: str
    """What the model is called."""

    context: int
    """Tokens at most, prompt and new ones together."""

    tokenizer: Any
    """The model's, with the interface of `transformers` tokenizers: encode, decode, apply_chat_template."""

    stop_tokens: tuple[int, ...]
    """Token ids that end a text."""

    def stream(
        self, prompt: Sequence[int], options: SamplingOptions, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[int]:
        """New token ids as they come on, until a stop token, ``options.tokens`` or ``cancelled()``.

        Raises PromptTooLongError when the prompt and one token do not fit into the context.
        """
        ...
