"""Sizes to try: every length of a range before any a second time, and those next to the edges of tiles."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Span:
    """Sizes of one dimension: ``low`` to ``high``, and those next to ``edges``, which may lie beyond."""

    low: int = 1
    high: int = 130
    edges: tuple[int, ...] = ()

    def at_edges(self) -> list[int]:
        """Those next to edges, in order."""
        return sorted({e + d for e in self.edges for d in (-1, 0, 1) if e + d >= self.low})


def sample(spans: Mapping[str, Span], seed: int) -> Iterator[dict[str, int]]:
    """Sizes for each dimension, without end: by turns from the whole range, at edges, and either for each."""
    rng = random.Random(seed)
    lengths = {name: _shuffled(span, rng) for name, span in spans.items()}
    edges = {name: span.at_edges() for name, span in spans.items()}
    turn = 0
    while True:
        share = (0.0, 1.0, 0.5)[turn % 3]
        yield {
            name: rng.choice(edges[name]) if edges[name] and rng.random() < share else next(lengths[name])
            for name in spans
        }
        turn += 1


def _shuffled(span: Span, rng: random.Random) -> Iterator[int]:
    while True:
        yield from rng.sample(range(span.low, span.high + 1), span.high - span.low + 1)
