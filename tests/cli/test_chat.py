"""The conversation: answers, what is kept of it, what is said when a turn cannot be answered."""

from __future__ import annotations

import io

from vkinductor.cli.chat import converse
from vkinductor.llm.errors import PromptTooLongError
from vkinductor.llm.sampling import SamplingOptions


class Tokenizer:
    chat_template = None

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens, skip_special_tokens, clean_up_tokenization_spaces):
        return bytes(tokens).decode("utf-8", "replace")


class Echo:
    """Answers with the last line of the prompt in upper case."""

    tokenizer = Tokenizer()
    last = None

    def __init__(self):
        self.prompts = []

    def stream(self, prompt, options):
        if len(prompt) > 40:
            raise PromptTooLongError("too long")
        self.prompts.append(bytes(prompt).decode())
        yield from self.prompts[-1].splitlines()[-1].upper().encode()


def talk(text: str, stops: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    engine, sink = Echo(), io.StringIO()
    converse(engine, SamplingOptions(), stops, io.StringIO(text), sink)
    return sink.getvalue(), engine.prompts


def test_answers_are_part_of_the_next_prompt():
    assert talk("one\n\ntwo\n/exit\nthree\n") == ("ONE\nTWO\n", ["one", "one\nONE\ntwo"])


def test_reset():
    assert talk("one\n/reset\ntwo\n") == ("ONE\nTWO\n", ["one", "two"])


def test_a_turn_too_long_is_taken_back():
    printed, prompts = talk("one\n" + "x" * 50 + "\ntwo\n")
    assert printed == "ONE\nerror: too long\nTWO\n"
    assert prompts == ["one", "one\nONE\ntwo"]


def test_a_stop_text_ends_an_answer():
    assert talk("onetwo\n", ("TW",))[0] == "ONE\n"
