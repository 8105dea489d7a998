"""How much time tuning may take inside a compilation, and what it did not get to."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..compat import setting

log = logging.getLogger(__name__)


@dataclass
class Session:
    """One graph's tuning. ``each``: seconds a problem; ``left``: for all. ``untuned``: problems that had no time."""

    each: float
    left: float
    untuned: list[str] = field(default_factory=list)
    tuned: int = 0

    @property
    def seconds(self) -> float:
        """For the next problem; 0 or less: none."""
        return min(self.each, self.left)


_session: contextvars.ContextVar[Session | None] = contextvars.ContextVar("vkinductor_tuning", default=None)


def current() -> Session:
    """The session of the graph that this thread compiles, or one for a single problem."""
    found = _session.get()
    return fresh() if found is None else found


def fresh() -> Session:
    """A session by the present settings: all problems together get ``tuning_problems`` times what one gets."""
    each = float(setting("tuning_seconds"))
    return Session(each, int(setting("tuning_problems")) * each)


@contextlib.contextmanager
def session() -> Iterator[Session]:
    """Around the compilation of a graph."""
    made = fresh()
    token = _session.set(made)
    try:
        yield made
    finally:
        _session.reset(token)
        if made.untuned:
            log.warning(
                "tuning: no time was left for %d of %d problems (%s): raise the option tuning_seconds, or run "
                "`python -m vkinductor tune`. The graph is not cached",
                len(made.untuned),
                len(made.untuned) + made.tuned,
                "; ".join(made.untuned),
            )


def complete() -> bool:
    """Whether the graph that this thread compiles has got everything it asked for."""
    found = _session.get()
    return found is None or not found.untuned
