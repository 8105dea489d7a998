"""An engine without a model: tokens are bytes, and what it answers is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from vkinductor.llm.errors import PromptTooLongError
from vkinductor.llm.sampling import SamplingOptions

BEGIN, END = 256, 257
CONTEXT = 512


class ByteTokenizer:
    """Each byte of UTF-8 is a token; 256 begins a text, 257 ends it. A chat has one token more for each turn."""

    bos_token_id = BEGIN

    def __init__(self, template: bool = True) -> None:
        self.chat_template = "a template" if template else None

    def __len__(self) -> int:
        return 258

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BEGIN] * add_special_tokens + list(text.encode())

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert skip_special_tokens
        assert not clean_up_tokenization_spaces
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")

    def apply_chat_template(self, messages, add_generation_prompt: bool, tokenize: bool) -> str:
        assert add_generation_prompt
        assert not tokenize
        if any(message["content"] == "forbidden" for message in messages):
            raise ValueError("that word is not allowed")
        return "".join(f"[{message['role']}]{message['content']}" for message in messages) + "[assistant]"


class FakeEngine:
    """Answers with ``reply`` (None: the prompt's own text), token by token, then ends the text.

    ``gate``: when set, each token waits for it. ``delay``: seconds a token. Counts what a test may ask for, and fails
    when it is used from two threads or for two generations at a time.
    """

    name = "fake"
    context = CONTEXT
    stop_tokens = (END,)

    def __init__(self, reply: str | None = None, delay: float = 0.0, template: bool = True) -> None:
        self.tokenizer = ByteTokenizer(template)
        self.reply = reply
        self.delay = delay
        self.endless = False
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.options: list[SamplingOptions] = []
        self.prompts: list[tuple[int, ...]] = []
        self.produced = 0
        self.active = 0
        self.threads: set[str] = set()

    def stream(
        self, prompt: Sequence[int], options: SamplingOptions, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[int]:
        if len(prompt) >= self.context:
            raise PromptTooLongError("too long")
        self.threads.add(threading.current_thread().name)
        self.prompts.append(tuple(prompt))
        self.options.append(options)
        self.active += 1
        assert self.active == 1
        self.began.set()
        try:
            if self.error is not None:
                raise self.error
            text = self.reply.encode() if self.reply is not None else bytes(t for t in prompt if t < 256)
            place = 0
            while place < options.tokens and (self.endless or place < len(text)):
                while not self.gate.wait(0.01) and not cancelled():
                    pass
                if cancelled():
                    return
                if self.delay:
                    time.sleep(self.delay)
                self.produced += 1
                yield text[place % len(text)]
                place += 1
        finally:
            self.active -= 1
