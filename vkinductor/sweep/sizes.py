"""Sizes to try: every length of a range about equally often, and those next to the edges of tiles."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Sizes = Mapping[str, int]

# Multiples of this add up, modulo 1, to points that lie evenly whatever their number (Weyl; the golden ratio).
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Span:
    """Sizes of one dimension: ``low`` to ``high``, all multiples of ``step``, and those next to ``edges``."""

    low: int = 1
    high: int = 130
    edges: tuple[int, ...] = ()
    step: int = 1

    def at_edges(self) -> list[int]:
        """Those next to edges, in order; edges beyond ``high`` too."""
        found = {e + d * self.step for e in self.edges for d in (-1, 0, 1)}
        return sorted(size for size in found if size >= self.low and size % self.step == 0)

    def at(self, place: float) -> int:
        """The size at a ``place`` in [0, 1)."""
        return self.low + int(place * ((self.high - self.low) // self.step + 1)) * self.step


def sample(spans: Mapping[str, Span], seed: int) -> Iterator[dict[str, int]]:
    """Sizes for each dimension, without end: by turns evenly spread ones, edges, and both mixed."""
    rng = random.Random(seed)
    starts = {name: rng.random() for name in spans}
    edges = {name: span.at_edges() for name, span in spans.items()}
    for turn in range(1 << 30):
        found = {}
        for place, (name, span) in enumerate(spans.items()):
            spread = span.at((starts[name] + turn * (_GOLDEN + 0.1307 * place)) % 1.0)
            share = (0.0, 1.0, 0.5)[turn % 3]
            found[name] = rng.choice(edges[name]) if edges[name] and rng.random() < share else spread
        yield found
