"""One job on the engine: tokens to text, stop strings, the reason of the end. Runs on the worker's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vkinductor.llm.detokenizer import Detokenizer
from vkinductor.llm.engine import Engine
from vkinductor.llm.stops import StopMatcher
from vkinductor.serve.jobs import Finished, FinishReason, Job, Piece


def generate(engine: Engine, decode: Callable[[Sequence[int]], str], job: Job) -> Iterator[Piece | Finished]:
    """The events of a job. Of a job that is cancelled they just end, without `Finished`.

    ``decode`` gives the text of token ids. Raises whatever the engine raises.
    """
    text, stops = Detokenizer(decode), StopMatcher(job.stops)
    ends = {*engine.stop_tokens, *job.options.stop}
    produced = 0
    reason: FinishReason | None = None
    with _closed_at_the_end(engine.stream(job.prompt, job.options, job.cancelled)) as tokens:
        for token in tokens:
            if job.cancelled():
                return
            if token in ends:
                reason = "stop"
                break
            produced += 1
            if new := stops.push(text.push(token)):
                yield Piece(new)
            if stops.matched is not None:
                reason = "stop"
                break
    if job.cancelled():
        return
    if reason is None:
        reason = "length" if produced >= job.options.tokens else "stop"
    if stops.matched is None:
        if rest := stops.push(text.flush()):
            yield Piece(rest)
        if stops.matched is not None:
            reason = "stop"
        elif rest := stops.flush():
            yield Piece(rest)
    yield Finished(reason, produced)


@contextmanager
def _closed_at_the_end(tokens: Iterator[int]) -> Iterator[Iterator[int]]:
    """Close a stream of tokens that is a generator: it frees the engine when its tokens are not all wanted."""
    try:
        yield tokens
    finally:
        if (close := getattr(tokens, "close", None)) is not None:
            close()
