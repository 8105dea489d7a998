"""A process that sweeps families one after the other: `python -m vkinductor.sweep.worker`, a JSON object on stdin.

What it does it says on stdout, a JSON object a line: which program begins, what came of it, and what a family had when
its time was up. Owns no judgement; a process that dies says at which program.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .sizes import Sizes, Span


@dataclass(frozen=True)
class Order:
    """``families`` by name, each for ``seconds``. ``cases``: sizes a program; ``repeats``: calls that are compared bit
    by bit, for the first program of a family that passes."""

    families: tuple[str, ...]
    seconds: float
    seed: int = 0
    cases: int = 12
    repeats: int = 100


def sweep(order: Order) -> Iterator[dict[str, Any]]:
    """What there is to say, as it happens."""
    from vkinductor.runtime import context

    from .check import check, differing_bits
    from .families import FAMILIES
    from .program import programs
    from .sizes import sample

    for name in order.families:
        ends = time.monotonic() + order.seconds
        repeated = False
        yield {"family": name}
        for position, named in enumerate(programs(FAMILIES[name], context.get().info, order.seed)):
            yield {"begin": named.name}
            program = named.program
            count = order.cases if program.dynamic else min(program.together, order.cases)
            spans = _without_ones(program.spans) if program.dynamic else program.spans
            every: list[Sizes] = list(itertools.islice(sample(spans, order.seed + position), count))
            outcomes = check(named, every, order.seed)
            yield {"program": named.name, "outcomes": [asdict(o) for o in outcomes]}
            if not repeated and not any(o.problem for o in outcomes):
                repeated = True
                yield {"begin": f"{named.name} (repeats)"}
                off = differing_bits(named, outcomes[-1].sizes, order.seed, order.repeats)
                yield {"repeats": order.repeats, "differing": off, "program": named.name, "sizes": outcomes[-1].sizes}
            if time.monotonic() > ends:
                break
        yield {"end": name}


def _without_ones(spans: Mapping[str, Span]) -> dict[str, Span]:
    """torch compiles sizes of 1 for themselves."""
    return {name: replace(span, low=max(2, span.low)) if span.high > 1 else span for name, span in spans.items()}


def main() -> int:
    """Read an order, write what comes of it."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    values = json.load(sys.stdin)
    order = Order(**{**values, "families": tuple(values["families"])})
    for message in sweep(order):
        print(json.dumps(message), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
