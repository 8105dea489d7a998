"""Noting what a call would dispatch, without dispatching it.

The caller runs its code on stand-ins for memory: `Capture.resource` gives an address range of its own, which belongs
to nothing, to each input and each allocation; memory that stays where it is can be named (`Capture.keep`). Whatever the
code then dispatches is noted with pointers that name a resource and an offset. Work that is no dispatch cannot be noted
and refuses the capture.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from vkinductor.runtime.errors import VulkanError

if TYPE_CHECKING:
    from vkinductor.runtime.hazards import Ranges
    from vkinductor.runtime.pipeline import Pipeline
    from vkinductor.runtime.stream import Stream

# Stand-in addresses: over every real one (poisoned ones too), one tebibyte for each resource.
_BASE = 1 << 61
_STEP_BITS = 40


class CaptureRefused(VulkanError):
    """The call does something that a recording cannot hold; the message says what."""


class Pointer(NamedTuple):
    """An address: a byte offset in a resource."""

    resource: int
    offset: int


class Access(NamedTuple):
    """Bytes of a resource that a dispatch touches."""

    resource: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Launch:
    """One dispatch: values of the arguments in declared order, workgroups, what it reads and writes."""

    pipeline: Pipeline
    groups: tuple[int, int, int]
    values: tuple[int | float | Pointer, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


class Capture:
    """The dispatches of one call and the sizes of the resources they touch, in bytes by number."""

    def __init__(self, bias: int = 0) -> None:
        self.launches: list[Launch] = []
        self.sizes: list[int] = []
        self.notes: list[Any] = []
        self.kept: dict[int, int] = {}
        """Addresses of the resources that are memory of their own, by number."""
        self._bias = bias
        self._base = _BASE + bias

    def resource(self, nbytes: int, note: Any = None) -> int:
        """The address that stands for a new resource; `note` is the caller's, kept in `notes` by number.

        Raises:
            CaptureRefused: it is larger than a tebibyte.
        """
        if nbytes > 1 << _STEP_BITS:
            raise CaptureRefused(f"a buffer of {nbytes} bytes")
        self.sizes.append(nbytes)
        self.notes.append(note)
        return self._base + ((len(self.sizes) - 1) << _STEP_BITS)

    def keep(self, address: int, nbytes: int) -> None:
        """Make a resource of memory that the call uses at its own address."""
        self.kept[len(self.sizes)] = address
        self.resource(nbytes)

    def pointer(self, address: int) -> Pointer:
        """What a stand-in address, or one of kept memory, points to. Raises `CaptureRefused` for any other."""
        distance = address - self._base
        number = distance >> _STEP_BITS
        if not 0 <= number < len(self.sizes):
            for number, start in self.kept.items():
                if 0 <= address - start < self.sizes[number]:
                    return Pointer(number, address - start)
            raise CaptureRefused(f"an access to {address:#x}, which is no argument and no intermediate")
        return Pointer(number, distance & ((1 << _STEP_BITS) - 1))

    def dispatch(
        self, pipeline: Pipeline, groups: tuple[int, int, int], args: bytes, reads: Ranges, writes: Ranges
    ) -> None:
        """Note a dispatch; the arguments are those of `Stream.dispatch`."""
        layout = pipeline.source.layout
        values: list[int | float | Pointer] = []
        for (_, kind), value in zip(layout.fields, layout.unpack(args), strict=True):
            is_pointer = kind == "ptr" and value
            values.append(self.pointer(int(value) + self._bias) if is_pointer else value)
        self.launches.append(Launch(pipeline, groups, tuple(values), self._accesses(reads), self._accesses(writes)))

    def _accesses(self, ranges: Ranges) -> tuple[Access, ...]:
        return tuple(Access(*self.pointer(address), nbytes) for address, nbytes in ranges if nbytes)


class Captures:
    """Which threads are capturing. The stream asks at each operation, so the empty case is one look at a dict."""

    def __init__(self) -> None:
        self.by_thread: dict[int, Capture] = {}

    @property
    def current(self) -> Capture | None:
        """The capture of this thread."""
        return self.by_thread.get(threading.get_ident()) if self.by_thread else None

    def refuse(self, what: str) -> None:
        """Raise `CaptureRefused` if this thread is capturing: `what` cannot be noted."""
        if self.current is not None:
            raise CaptureRefused(what)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[Capture]:
        """Capture what this thread does on `stream` inside the block."""
        me = threading.get_ident()
        assert me not in self.by_thread, "captures do not nest"
        capture = self.by_thread[me] = Capture(stream.bias)
        try:
            yield capture
        finally:
            del self.by_thread[me]


def lifetimes(launches: Sequence[Launch], count: int) -> list[tuple[int, int]]:
    """Positions of the first and last launch that touches each of `count` resources; (0, -1) for none."""
    spans = [(0, -1)] * count
    for at, launch in enumerate(launches):
        for access in (*launch.reads, *launch.writes):
            first, last = spans[access.resource]
            spans[access.resource] = (at, at) if last < 0 else (first, at)
    return spans
