"""The conversation of `python -m vkinductor generate --chat`: turns from lines of text, answers as they come.

Owns the conversation alone. Tokens come from the engine, which runs of each prompt only what it does not hold yet.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from vkinductor.llm.generator_engine import GeneratorEngine
    from vkinductor.llm.sampling import SamplingOptions

HELP = "one turn a line; /reset forgets the conversation, /exit or end of file ends it, Ctrl-C ends an answer"


def converse(
    engine: GeneratorEngine, options: SamplingOptions, stops: tuple[str, ...], source: TextIO, sink: TextIO
) -> None:
    """Answer each line of `source` on `sink` until /exit or its end. What goes wrong with a turn is said, and the turn
    is taken back."""
    from vkinductor.llm.errors import ModelError
    from vkinductor.llm.prompts import encode_conversation

    terminal = source.isatty()
    messages: list[dict[str, str]] = []
    if terminal:
        print(HELP, file=sink)
    while True:
        if terminal:
            print("> ", end="", file=sink, flush=True)
        line = source.readline()
        turn = line.strip()
        if not line or turn == "/exit":
            return
        if turn == "/reset":
            messages.clear()
        if not turn or turn == "/reset":
            continue
        messages.append({"role": "user", "content": turn})
        try:
            prompt = encode_conversation(engine.tokenizer, messages)
            answer = _answer(engine, prompt, options, stops, sink)
        except ModelError as error:
            print(f"error: {error}", file=sink, flush=True)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})
        if terminal and engine.last is not None:
            last = engine.last
            print(
                f"[{last.prompt_tokens} tokens, {last.reused_tokens} of them held; {len(last.tokens)} new ones, "
                f"{last.tokens_per_second:.1f} tokens/s]",
                file=sink,
            )


def _answer(
    engine: GeneratorEngine, prompt: list[int], options: SamplingOptions, stops: tuple[str, ...], sink: TextIO
) -> str:
    """Print the answer as it comes; returns it, or as much as there was when Ctrl-C ended it."""
    from vkinductor.llm.text import pieces

    answer: list[str] = []
    with closing(engine.stream(prompt, options)) as tokens:  # type: ignore[type-var]
        try:
            for piece in pieces(engine.tokenizer, tokens, stops):
                answer.append(piece)
                print(piece, end="", file=sink, flush=True)
        except KeyboardInterrupt:
            pass
    print(file=sink, flush=True)
    return "".join(answer)
