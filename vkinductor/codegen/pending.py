"""Sections of a kernel that is still being written: buffers of statements, not text yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch._inductor.codegen.common import IndentedBuffer

from . import scans, vectorize
from .sections import Section


@dataclass
class Part:
    """What a loop section computes before ``scan``."""

    body: list[IndentedBuffer]
    scan: str


@dataclass
class PendingSection:
    """A closed section whose stores are not resolved yet: until the kernel is complete nobody knows which
    buffers fusion has made unnecessary."""

    loop: bool
    before: IndentedBuffer
    body: list[IndentedBuffer]
    after: IndentedBuffer
    row: IndentedBuffer
    parts: list[Part]
    begin: IndentedBuffer
    end: IndentedBuffer

    def any(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.parts) or any(bool(b) for b in (self.before, *self.body, self.after, self.row))

    def resolve(self, kernel: Any) -> Section:
        """Its text, in which the accesses of a body are still marked."""
        if self.parts:
            indexing, *rest = self.body
            bodies = [[line for b in body for line in lines_of(b)] for body in (*(p.body for p in self.parts), rest)]
            bodies = [vectorize.scalar(body, list(kernel.accesses.values())) for body in bodies]
            bodies[-1] = [*lines_of(self.begin), *bodies[-1], *lines_of(self.end)]
            carries, loop = scans.section(kernel, lines_of(indexing), bodies, [p.scan for p in self.parts])
            return Section(
                False, [*lines_of(self.before), *carries, *loop], [], lines_of(self.after), lines_of(self.row)
            )
        body = [line for buffer in self.body for line in lines_of(buffer)]
        around = lines_of(self.begin), lines_of(self.end)
        return Section(self.loop, lines_of(self.before), body, lines_of(self.after), lines_of(self.row), *around)


def lines_of(buffer: IndentedBuffer) -> list[str]:
    """Its lines that are not empty; stores that fusion has made unnecessary are gone."""
    return [line for line in buffer.getvalue().splitlines() if line.strip()]
