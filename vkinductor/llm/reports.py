"""What a generation produced and what it cost: tokens, times, bytes, and the runtime's counts for each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vkinductor.runtime.stats import counters


@dataclass(frozen=True)
class Generation:
    """What one generation produced and what it cost.

    `rows` are the new token ids of each sequence, the stop token left out; `text` is what they say, if a tokenizer was
    at hand. Of `prompt_tokens`, the longest prompt's, `reused_tokens` were in the cache already. Times are wall-clock
    seconds: `prefill_seconds` until the first new token is on the host, `decode_seconds` for the `steps` after it (a
    step runs one token of each sequence; a few may lie behind a stop). Counts "per token" are averages over those
    steps. `weight_bytes` and `cache_bytes` are what a step has to read: all weights but an embedding's other rows, and
    the cache as far as it is filled, on average.
    """

    prompt_tokens: int
    rows: tuple[tuple[int, ...], ...]
    prefill_seconds: float
    decode_seconds: float
    steps: int = 0
    reused_tokens: int = 0
    weight_bytes: int = 0
    cache_bytes: int = 0
    counts_per_token: dict[str, float] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    text: str = ""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The first sequence's new token ids."""
        return self.rows[0]

    @property
    def tokens_per_second(self) -> float:
        """Decode rate of one sequence, in steps a second; 0 if there was no decode step."""
        return self.steps / self.decode_seconds if self.steps > 0 and self.decode_seconds > 0 else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Rate of the prompt's tokens that were run, in one sequence."""
        run = self.prompt_tokens - self.reused_tokens
        return run / self.prefill_seconds if self.prefill_seconds > 0 else 0.0

    @property
    def gigabytes_per_second(self) -> float:
        """Weights and cache read by decoding, in 10^9 bytes a second."""
        return (self.weight_bytes + self.cache_bytes) * self.tokens_per_second / 1e9


@dataclass(frozen=True)
class CompileReport:
    """What preparing a generator cost: graphs that Dynamo made, kernels compiled from GLSL, seconds."""

    graphs: int
    kernels: int
    seconds: float


def weight_bytes(model: Any) -> int:
    """Bytes of weights that a decode step reads: all, but of an embedding that is not the head as well, one row."""
    total = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
    tokens = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else model.embedding
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else model.head
    table = [*tokens.parameters(), *tokens.buffers()]
    shared = head is None or {id(weight) for weight in table} & {id(weight) for weight in head.parameters()}
    return total if shared else total - sum(weight.nbytes for weight in table)


def cache_bytes_per_slot(cache: Any) -> int:
    """Bytes of keys and values that one token of each sequence takes, over all layers."""
    return sum((layer.keys.nbytes + layer.values.nbytes) // cache.length for layer in cache.layers)


def counts_between(
    before: dict[str, Any], after: dict[str, Any], steps: int
) -> tuple[dict[str, float], dict[str, int]]:
    """Each counter's growth a step between two snapshots, and the growth of each operator's fallback count."""
    steps = max(steps, 1)
    per_token = {name: (after[name] - before[name]) / steps for name in after if isinstance(after[name], int)}
    earlier = before["fallbacks"]
    grown = {op: count - earlier.get(op, 0) for op, count in after["fallbacks"].items()}
    fallbacks = {op: count for op, count in grown.items() if count}
    per_token["fallbacks"] = sum(fallbacks.values()) / steps
    return per_token, fallbacks


def kernels_compiled() -> int:
    """Kernels compiled from GLSL in this process so far."""
    return int(counters.snapshot()["kernels_compiled"])


def graphs_made() -> int:
    """Graphs that Dynamo has made in this process so far."""
    from torch._dynamo.utils import counters as dynamo_counters

    return int(dynamo_counters["stats"]["unique_graphs"])
