"""How the next token is chosen: greedily, or drawn with a temperature among the likeliest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vkinductor.llm.errors import UnknownOptionError


@dataclass(frozen=True)
class SamplingOptions:
    """Options of one generation.

    ``tokens``: new tokens at most. ``temperature`` 0: the likeliest token, always. ``top_k`` 0: all tokens.
    ``top_p``: the fewest likeliest tokens whose probabilities reach it. ``seed`` None: another draw each time.
    ``stop``: token ids that end the text and are not part of it. Raises UnknownOptionError for values out of range.
    """

    tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UnknownOptionError(f"tokens must be at least 1, not {self.tokens}")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise UnknownOptionError(f"temperature must be from 0 to 100, not {self.temperature}")
        if self.top_k < 0:
            raise UnknownOptionError(f"top_k must be 0 (all) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UnknownOptionError(f"top_p must be over 0 and at most 1, not {self.top_p}")
