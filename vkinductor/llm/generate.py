"""Greedy text generation through one compiled prefill graph and one compiled decode graph.

Owns the loop, its static shapes and its measurements. Leaves loading to load.py, the cache to cache.py and
all compiling to `torch.compile`. Everything that changes from step to step lives in tensors (the token, the
cache, its position), so nothing makes Dynamo compile again: two graphs serve any number of prompts and
tokens.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from vkinductor.llm.errors import PromptTooLongError, UnknownOptionError
from vkinductor.runtime.stats import counters

# The cache's length is rounded up to this, so that nearby prompts share its shape and so their kernels.
CACHE_GRANULE = 64

# Tokens generated while compiling: one from the prefill, then decode steps that compile, record, and replay.
WARM_UP_TOKENS = 4

DEVICES = ("vulkan", "cpu")

# A stage of the work that may take long: the caller shows its name, and what is running while the context
# is open.
Stage = Callable[[str], Any]


@dataclass(frozen=True)
class Generation:
    """What one call of `Generator.generate` produced and what it cost.

    `tokens` are the new token ids. Times are wall-clock seconds: `prefill_seconds` until the first new
    token is on the host, `decode_seconds` for the other `len(tokens) - 1`. Counts "per token" are averages
    over decode steps.
    """

    prompt_tokens: int
    tokens: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    counts_per_token: dict[str, float] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Decode rate; 0 if there was no decode step."""
        steps = len(self.tokens) - 1
        return steps / self.decode_seconds if steps > 0 and self.decode_seconds > 0 else 0.0


@dataclass(frozen=True)
class CompileReport:
    """What preparing a generator cost: graphs that Dynamo made, kernels compiled from GLSL, seconds."""

    graphs: int
    kernels: int
    seconds: float


def parse_device(name: str) -> torch.device:
    """The torch device called `name` (vulkan, vulkan:0, cpu); raises UnknownOptionError for any other."""
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and (kind == "cpu" or not index.isdigit())):
        raise UnknownOptionError(f"unknown device {name!r}: choose one of {', '.join(DEVICES)}")
    return torch.device(name)


class Step(torch.nn.Module):
    """One forward pass of `model` over new tokens that ends in the next token, all on the device.

    Two methods with one body: each is compiled on its own, the prefill with a symbolic number of tokens,
    the decode step for exactly one.
    """

    def __init__(self, model: Any, cache: Any):
        super().__init__()
        self.model = model
        self.cache = cache
        # `past_key_values` became `cache` in transformers 5.24.
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Run a prompt (int64, (1, length)) from the cache's position on; returns the next token, (1, 1)."""
        return self._advance(tokens)

    def decode(self, token: torch.Tensor) -> torch.Tensor:
        """Run one token (int64, shape (1, 1)); returns the next one, (1, 1)."""
        return self._advance(token)

    def _advance(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        positions = self.cache.position + torch.arange(length, device=tokens.device)
        output = self.model(
            input_ids=tokens,
            attention_mask=self.cache.attention_mask(positions),
            position_ids=positions[None],
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self.cache},
        )
        self.cache.position.add_(length)
        return output.logits[:, -1].argmax(-1, keepdim=True)


class Generator:
    """A model made ready for greedy generation of sequences of at most `length` tokens.

    `model` is a `transformers` causal language model that is already on its device. `backend` names a
    `torch.compile` backend, or is None to run eagerly. Raises UnsupportedModelError (see cache.py).
    """

    def __init__(self, model: Any, length: int, backend: str | Callable[..., Any] | None = "vulkan"):
        from vkinductor.llm.cache import StaticKVCache  # imports transformers

        weight = next(model.parameters())
        self.device = weight.device
        length = -(-length // CACHE_GRANULE) * CACHE_GRANULE
        self.cache = StaticKVCache(model.config, length, weight.device, weight.dtype)
        step = Step(model, self.cache)
        self._prefill: Callable[[torch.Tensor], torch.Tensor] = step.prefill
        self._decode: Callable[[torch.Tensor], torch.Tensor] = step.decode
        self._eager = backend is None
        if backend is not None:
            self._prefill = torch.compile(step.prefill, backend=backend, fullgraph=True)
            self._decode = torch.compile(step.decode, backend=backend, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def generate(self, prompt: torch.Tensor, tokens: int, on_token: Callable[[int], None] | None = None) -> Generation:
        """Continue `prompt` (int64, (1, length)) by exactly `tokens` greedy tokens, an end token or not.

        `on_token` gets each token id as soon as it is on the host: 8 bytes are all that comes back from a
        step. Raises PromptTooLongError when prompt and tokens do not fit into the cache.
        """
        length = prompt.shape[1]
        check_length(length, tokens, self.cache.length)
        self.cache.rewind()
        produced: list[int] = []

        def emit(token: torch.Tensor) -> None:
            produced.append(int(token.item()))
            if on_token is not None:
                on_token(produced[-1])

        start = time.perf_counter()
        token = self._run_prefill(prompt.to(self.device))
        emit(token)
        first = time.perf_counter()
        before = counters.snapshot()
        for _ in range(tokens - 1):
            token = self._decode(token)
            emit(token)
        end = time.perf_counter()
        counts, fallbacks = _difference(before, counters.snapshot())
        steps = max(tokens - 1, 1)
        per_token = {name: count / steps for name, count in counts.items()}
        per_token["fallbacks"] = sum(fallbacks.values()) / steps
        return Generation(length, tuple(produced), first - start, end - first, per_token, fallbacks)

    def compile(self, prompt: torch.Tensor, stage: Stage | None = None) -> CompileReport:
        """Compile both graphs by running them, so that a later `generate` measures running only.

        The cache must hold `prompt` and WARM_UP_TOKENS more. `stage` opens a context around each part of the
        work. Does nothing when the generator runs eagerly.
        """
        if self._eager:
            return CompileReport(0, 0, 0.0)
        stage = stage or _no_stage
        start, kernels, graphs = time.perf_counter(), _kernels_compiled(), _graphs_made()
        with stage(f"compiling the prefill graph ({prompt.shape[1]} tokens)"):
            self.generate(prompt, 1)
        with stage("compiling the decode graph"):
            self.generate(prompt, WARM_UP_TOKENS)
        seconds = time.perf_counter() - start
        return CompileReport(_graphs_made() - graphs, _kernels_compiled() - kernels, seconds)

    def _run_prefill(self, prompt: torch.Tensor) -> torch.Tensor:
        if prompt.shape[1] == 1:
            return self._decode(prompt)
        # One graph for every length: without this Dynamo would compile the first length as a constant.
        torch._dynamo.mark_dynamic(prompt, 1, min=2, max=self.cache.length)
        return self._prefill(prompt)


def check_length(prompt_tokens: int, tokens: int, limit: int) -> None:
    """Raise PromptTooLongError unless 1 <= prompt_tokens, 1 <= tokens and both together fit into `limit`."""
    if tokens < 1:
        raise UnknownOptionError(f"tokens must be at least 1, not {tokens}")
    if prompt_tokens < 1:
        raise UnknownOptionError("the prompt is empty: give at least one token")
    if prompt_tokens + tokens > limit:
        raise PromptTooLongError(
            f"the prompt's {prompt_tokens} tokens and {tokens} new ones exceed the context of {limit}: "
            f"shorten the prompt or ask for at most {max(limit - prompt_tokens, 0)} tokens"
        )


@torch.no_grad()
def reference_tokens(model: Any, prompt: torch.Tensor, tokens: int) -> tuple[int, ...]:
    """Greedy tokens from `model` run eagerly with a growing cache: what a compiled run is compared with.

    Shares no code with `Generator`: neither cache nor mask nor step.
    """
    produced: list[int] = []
    output = model(input_ids=prompt, use_cache=True)
    names = inspect.signature(model.forward).parameters
    argument = "cache" if "cache" in names else "past_key_values"
    while True:
        token = output.logits[:, -1].argmax(-1, keepdim=True)
        produced.append(int(token.item()))
        if len(produced) == tokens:
            return tuple(produced)
        output = model(input_ids=token, use_cache=True, **{argument: output[argument]})


def _difference(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Counters that grew between two snapshots, and the growth of each operator's fallback count."""
    counts = {name: after[name] - before[name] for name in after if isinstance(after[name], int)}
    earlier = before["fallbacks"]
    fallbacks = {op: count - earlier.get(op, 0) for op, count in after["fallbacks"].items()}
    return counts, {op: count for op, count in fallbacks.items() if count}


def _kernels_compiled() -> int:
    return int(counters.snapshot()["kernels_compiled"])


def _graphs_made() -> int:
    from torch._dynamo.utils import counters as dynamo_counters

    return int(dynamo_counters["stats"]["unique_graphs"])


@contextmanager
def _no_stage(name: str) -> Iterator[None]:
    yield
