"""The driver of generation: a model, its cache, its compiled graphs, and the loop that runs them.

Owns what is compiled and when it runs: prompts in parts, several steps for each time that the host waits, cached
tokens that a prompt shares with what came before. Leaves what a step computes to step.py. Everything that changes from
step to step lives in tensors, so a few graphs serve any number of prompts and tokens: one for prompts, one for greedy
steps, one for drawn ones, each made when it is first needed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Generator_
from contextlib import contextmanager
from typing import Any

import torch

from vkinductor.llm import readback
from vkinductor.llm.architectures import check_dtype
from vkinductor.llm.errors import PromptTooLongError, UnknownOptionError
from vkinductor.llm.reports import (
    CompileReport,
    Generation,
    cache_bytes_per_slot,
    counts_between,
    graphs_made,
    kernels_compiled,
    weight_bytes,
)
from vkinductor.llm.sampling import SamplingOptions
from vkinductor.llm.step import Step
from vkinductor.runtime.stats import counters

# The cache's length is rounded up to this, so that nearby prompts share its shape and so their kernels.
CACHE_GRANULE = 64

# Sequences at a time: the kernels for few rows end there.
MOST_ROWS = 8

# Tokens of a prompt that run at once. The intermediates of more would take memory and save no time: at some hundred
# rows a product is limited by arithmetic.
PREFILL_CHUNK = 1024

# Tokens generated while compiling: one from the prefill, then decode steps that compile, record, and replay.
WARM_UP_TOKENS = 4

# Steps between two waits of the host grow while they take no longer than this: text still seems to flow, and waiting
# (about 50 us on a discrete GPU) is shared by many steps. More steps than MOST_STEPS would hardly lower that share.
FLOWING_SECONDS = 0.03
MOST_STEPS = 16

# A stage of the work that may take long: the caller shows its name, and what is running while the context is open.
Stage = Callable[[str], Any]

Row = Sequence[int]
Tokens = tuple[int | None, ...]


def never() -> bool:
    """What `cancelled` is when nobody cancels."""
    return False


class Generator:
    """A model made ready to generate `batch` sequences at a time of at most `length` tokens each.

    `model` is a causal language model of `transformers`, or a `decoder.Decoder`, already on its device. `backend` names
    a `torch.compile` backend, or is None to run eagerly. `compile_options` are the backend's (docs/options.md; None:
    the model's own attribute of that name, if it has one). `in_flight`: chunks of steps at a time (None: two on a GPU,
    which then goes on while tokens are read and used; what ran behind a stop is dropped). Not thread-safe. Raises
    UnknownOptionError for a batch that is not from 1 to MOST_ROWS, for options without a backend and for weights in a
    dtype that the model's hidden states outgrow, and UnsupportedModelError (see cache.py).
    """

    def __init__(
        self,
        model: Any,
        length: int,
        backend: str | Callable[..., Any] | None = "vulkan",
        *,
        batch: int = 1,
        prefill_chunk: int = PREFILL_CHUNK,
        in_flight: int | None = None,
        compile_options: Mapping[str, Any] | None = None,
    ):
        from vkinductor.llm.cache import StaticKVCache  # imports transformers

        if not 1 <= batch <= MOST_ROWS:
            raise UnknownOptionError(f"batch must be from 1 to {MOST_ROWS}, not {batch}")
        if prefill_chunk < 4:  # parts of two tokens or more, whatever the length
            raise UnknownOptionError(f"prefill_chunk must be at least 4, not {prefill_chunk}")
        weight = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
        self.model = model
        self.device = weight.device
        self.batch = batch
        self.prefill_chunk = prefill_chunk
        self._in_flight = in_flight or (2 if readback.worthwhile(weight.device) else 1)
        check_dtype(str(getattr(model.config.get_text_config(), "model_type", "")), weight.dtype)
        length = -(-length // CACHE_GRANULE) * CACHE_GRANULE
        self.cache = StaticKVCache(model.config, length, weight.device, weight.dtype, batch)
        self.last: Generation | None = None
        """What the last stream that ran to its end, or was closed, produced and cost."""
        self._step = step = Step(model, self.cache)
        self._held: tuple[int, ...] = ()  # tokens whose keys are in the cache, for one sequence
        self._newest = 0  # the one after them
        self._weight_bytes, self._slot_bytes = weight_bytes(model), cache_bytes_per_slot(self.cache)
        self._prefill: Callable[[torch.Tensor], None] = step.prefill
        self._greedy: Callable[[], None] = step.greedy
        self._sampled: Callable[[], None] = step.sampled
        self._eager = backend is None
        if backend is None and compile_options:
            raise UnknownOptionError(f"{', '.join(compile_options)}: options of a backend, and there is none")
        if backend is not None:
            how: dict[str, Any] = {"backend": backend, "fullgraph": True}
            own = options_of(model, compile_options)
            self._prefill = torch.compile(step.prefill, **how, options=dict(own) or None)
            self._greedy = torch.compile(step.greedy, **how, options=dict(own) or None, dynamic=False)
            self._sampled = torch.compile(step.sampled, **how, options=dict(own) or None, dynamic=False)

    def generate(
        self,
        prompt: torch.Tensor | Row | Sequence[Row],
        tokens: int | SamplingOptions,
        on_token: Callable[[int], None] | None = None,
        *,
        steps: int | None = None,
    ) -> Generation:
        """Continue `prompt` by at most `tokens` tokens (a number: exactly that many greedy ones).

        `prompt`: int64 (rows, length), token ids, or several lists of those of any lengths. `on_token` gets each token
        of the first sequence as soon as it is on the host. `steps` and errors are those of `stream`.
        """
        options = tokens if isinstance(tokens, SamplingOptions) else SamplingOptions(tokens=check_tokens(tokens))
        for row in self.stream(_rows(prompt), options, steps=steps):
            if on_token is not None and row[0] is not None:
                on_token(row[0])
        assert self.last is not None
        return self.last

    def stream(
        self,
        prompts: Sequence[Row],
        options: SamplingOptions,
        *,
        steps: int | None = None,
        cancelled: Callable[[], bool] = never,
    ) -> Generator_[Tokens, None, None]:
        """The next token of each sequence, step by step; None for one that has ended. `last` is set at the end.

        At most `batch` prompts. A sequence ends before a token of `options.stop`; the stream ends with the last of
        them, after `options.tokens`, or when `cancelled()`, which is asked whenever the host waits. `steps`: how many
        run for each such wait, at least 1 (None: as many as take a short while). Nothing but their tokens comes back.
        Raises PromptTooLongError when prompt and tokens do not fit into the cache, UnknownOptionError for a token that
        the model does not have, no prompt or an empty one.
        """
        self._check(prompts, options, steps)
        return self._stream(prompts, options, steps, cancelled)

    def _stream(
        self, prompts: Sequence[Row], options: SamplingOptions, steps: int | None, cancelled: Callable[[], bool]
    ) -> Generator_[Tokens, None, None]:
        length, stop = max(map(len, prompts)), frozenset(options.stop)
        produced: list[list[int]] = [[] for _ in prompts]
        running = [True] * len(prompts)
        reused = ran = launched = 0
        start = first = end = time.perf_counter()
        before = after = counters.snapshot()
        try:
            reused = self._begin(prompts, length, options)
            chunks = self._chunks(length, options, steps, cancelled)
            for position, (chunk, steps_launched) in enumerate(chunks):
                end, after = time.perf_counter(), counters.snapshot()
                if position == 0:
                    first, before = end, after
                else:
                    ran, launched = ran + len(chunk), steps_launched
                for row in chunk:
                    for at, token in enumerate(row[: len(prompts)]):
                        if running[at] and token in stop:
                            running[at] = False
                        elif running[at]:
                            produced[at].append(token)
                    if not any(running):
                        return
                    yield tuple(rows[-1] if on else None for rows, on in zip(produced, running, strict=True))
        finally:
            per_token, fallbacks = counts_between(before, after, launched)
            self.last = Generation(
                prompt_tokens=length,
                rows=tuple(map(tuple, produced)),
                prefill_seconds=first - start,
                decode_seconds=end - first,
                steps=ran,
                reused_tokens=reused,
                weight_bytes=self._weight_bytes,
                cache_bytes=self._slot_bytes * (length + (ran + 1) // 2),
                counts_per_token=per_token,
                fallbacks=fallbacks,
            )

    def _chunks(
        self, length: int, options: SamplingOptions, steps: int | None, cancelled: Callable[[], bool]
    ) -> Iterator[tuple[list[list[int]], int]]:
        """Tokens as they are read back, and the steps launched by then: those behind the prompt alone, then a chunk of
        steps each time."""
        history = self._step.history.tokens
        advance = self._greedy if options.temperature == 0 else self._sampled
        made, count = 1, steps or 1  # tokens, launched
        flying = deque([(1, readback.Pending(history[length : length + 1]))])
        ready = time.perf_counter()
        while flying and not cancelled():
            tokens, pending = flying.popleft()
            chunk = pending.read()
            seconds, ready = time.perf_counter() - ready, time.perf_counter()
            first = made == 1
            if self.batch == 1 and not first:
                # The step before each of these tokens ran its predecessor.
                self._held += (self._newest, *(row[0] for row in chunk[:-1]))
            self._newest = chunk[-1][0]
            yield chunk, made - 1
            if steps is None and not first and tokens == count:
                count = min(2 * count if 2 * seconds <= FLOWING_SECONDS else count, MOST_STEPS)
            if len(flying) == 0:
                ready = time.perf_counter()
            with torch.no_grad():
                while made < options.tokens and len(flying) < self._in_flight:
                    tokens = min(count, options.tokens - made)
                    for _ in range(tokens):
                        advance()
                    rows = history[length + made : length + made + tokens]
                    flying.append((tokens, readback.Pending(rows)))
                    made += tokens

    def _begin(self, prompts: Sequence[Row], length: int, options: SamplingOptions) -> int:
        """Run the prompts up to the first new token, which stays on the device. Returns how many tokens were held."""
        rows = [list(prompt) for prompt in prompts]
        rows += [rows[-1]] * (self.batch - len(rows))  # what nobody asked for is not looked at
        reused = 0
        if self.batch == 1:
            reused = min(shared_prefix(self._held, rows[0]), length - 1)
        self._held = self._held[:reused]  # nothing more, should this fail on its way
        with torch.no_grad():
            self.cache.rewind(reused)
            if self.cache.start is not None:
                self.cache.start.copy_(torch.tensor([length - len(row) for row in rows]))
            self._step.sampler.prepare(options, length)
            tokens = torch.tensor([[0] * (length - len(row)) + row for row in rows])[:, reused:]
            for part in tokens.split(chunk_lengths(tokens.shape[1], self.prefill_chunk), dim=1):
                self._run_part(part, options, reused)
        self._held = tuple(rows[0]) if self.batch == 1 else ()
        return reused

    def _run_part(self, part: torch.Tensor, options: SamplingOptions, at: int) -> None:
        if part.shape[1] == 1:  # a decode step is made for one token; the symbolic length of the other graph is not
            self._step.history.tokens[at : at + 1].copy_(part.t())
            (self._greedy if options.temperature == 0 else self._sampled)()
            return
        part = part.contiguous().to(self.device)
        # One graph for every length: without this Dynamo would compile the first length as a constant.
        torch._dynamo.mark_dynamic(part, 1, min=2, max=self.cache.length)
        self._prefill(part)

    def compile(
        self, prompt: torch.Tensor | Row, stage: Stage | None = None, options: SamplingOptions | None = None
    ) -> CompileReport:
        """Compile the graphs that `options` (None: greedy) need by running them: a later call measures running only.

        The cache must hold `prompt` and WARM_UP_TOKENS more. `stage` opens a context around each part of the work.
        Does nothing when the generator runs eagerly.
        """
        if self._eager:
            return CompileReport(0, 0, 0.0)
        stage = stage or _no_stage
        temperature = 0.0 if options is None else options.temperature
        rows = _rows(prompt)
        start, kernels, graphs = time.perf_counter(), kernels_compiled(), graphs_made()
        with stage(f"compiling the prefill graph ({len(rows[0])} tokens)"):
            self.generate(rows, SamplingOptions(tokens=1, temperature=temperature, seed=0))
        with stage("compiling the decode graph"):
            self.forget()  # or all of the prompt would be held, and its graph not run again
            self.generate(rows, SamplingOptions(tokens=WARM_UP_TOKENS, temperature=temperature, seed=0))
        self.forget()
        seconds = time.perf_counter() - start
        return CompileReport(graphs_made() - graphs, kernels_compiled() - kernels, seconds)

    def forget(self) -> None:
        """Hold no tokens of an earlier prompt any more: the next one runs from its beginning."""
        self._held = ()

    def _check(self, prompts: Sequence[Row], options: SamplingOptions, steps: int | None) -> None:
        if not 1 <= len(prompts) <= self.batch:
            raise UnknownOptionError(f"{len(prompts)} prompts for a generator of {self.batch} sequences at a time")
        if steps is not None and steps < 1:
            raise UnknownOptionError(f"steps must be at least 1, not {steps}")
        words = self.model.config.get_text_config(decoder=True).vocab_size
        for prompt in prompts:  # each takes as many slots as the longest
            check_length(len(prompt) and max(map(len, prompts)), options.tokens, self.cache.length)
            if not 0 <= min(prompt) <= max(prompt) < words:
                raise UnknownOptionError(f"a token of the prompt is none of the model's {words}")


def options_of(model: Any, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a backend that a model is compiled with: those given, else what the model was loaded with."""
    return dict((getattr(model, "compile_options", None) or {}) if given is None else given)


def chunk_lengths(length: int, most: int) -> list[int]:
    """Lengths of the parts of a prompt, `most` (from 4) at most; none but a prompt of one token is shorter than 2."""
    count = -(-length // most)
    return [length // count + (part < length % count) for part in range(count)]


def shared_prefix(a: Row, b: Row) -> int:
    """How many leading tokens are the same."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def check_tokens(tokens: int) -> int:
    """Raise UnknownOptionError unless there is something to generate; returns `tokens`."""
    if tokens < 1:
        raise UnknownOptionError(f"tokens must be at least 1, not {tokens}")
    return tokens


def check_length(prompt_tokens: int, tokens: int, limit: int) -> None:
    """Raise PromptTooLongError unless 1 <= prompt_tokens, 1 <= tokens and both together fit into `limit`."""
    check_tokens(tokens)
    if prompt_tokens < 1:
        raise UnknownOptionError("the prompt is empty: give at least one token")
    if prompt_tokens + tokens > limit:
        raise PromptTooLongError(
            f"the prompt's {prompt_tokens} tokens and {tokens} new ones exceed the context of {limit}: "
            f"shorten the prompt or ask for at most {max(limit - prompt_tokens, 0)} tokens"
        )


def _rows(prompt: torch.Tensor | Row | Sequence[Row]) -> list[Row]:
    if isinstance(prompt, torch.Tensor):
        rows: list[Row] = prompt.tolist()
        return rows
    if prompt and not isinstance(prompt[0], int):
        return list(prompt)  # type: ignore[arg-type]
    return [prompt]  # type: ignore[list-item]


@contextmanager
def _no_stage(name: str) -> Iterator[None]:
    yield
