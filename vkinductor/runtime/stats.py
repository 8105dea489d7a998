"""Counters of what the runtime did, as plain integers. Owns counting only; who counts what is said beside
each field.
"""

from __future__ import annotations

from typing import Any


class Stats:
    """Mutable counters. Increments are plain `+=`: exact in one thread, good enough for reports across
    threads.
    """

    __slots__ = (
        "allocations",  # Allocator.allocate calls that succeeded
        "barriers",  # pipeline barriers recorded for a hazard (the host barrier of a submit is not counted)
        "copies",  # transfer commands recorded (copies, fills, staged uploads and downloads)
        "d2h_bytes",  # bytes downloaded
        "dispatches",  # dispatches recorded
        "fallbacks",  # operator name -> times it ran on the CPU instead (counted by the torch device)
        "h2d_bytes",  # bytes uploaded
        "kernels_compiled",  # GLSL sources really compiled (cache hits do not count)
        "recordings",  # command buffers recorded for replay
        "replays",  # replays of a recorded command buffer
        "submits",  # queue submissions
        "timings",  # candidates that tuning has timed
    )

    dispatches: int
    submits: int
    barriers: int
    recordings: int
    replays: int
    kernels_compiled: int
    h2d_bytes: int
    d2h_bytes: int
    allocations: int
    copies: int
    timings: int
    fallbacks: dict[str, int]

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set every counter to zero and forget the fallbacks."""
        for name in self.__slots__:
            setattr(self, name, {} if name == "fallbacks" else 0)

    def snapshot(self) -> dict[str, Any]:
        """The counters as a new dict; `fallbacks` is a copy."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["fallbacks"] = dict(self.fallbacks)
        return values


# Part of the device registry's state: `context.reset()` resets it.
counters = Stats()
