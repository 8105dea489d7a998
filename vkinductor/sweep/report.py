"""What a sweep found: a line for each family, and what makes a failure again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def reproducer(program: str, sizes: Mapping[str, int], seed: int) -> str:
    """The command that runs a case again."""
    text = ",".join(f"{name}={size}" for name, size in sizes.items())
    return f'python -m vkinductor sweep --program "{program}" --sizes {text} --seed {seed}'


@dataclass
class Family:
    """What was found of one family. ``worst``: the largest error in units of what it may be, and where."""

    name: str
    seed: int
    programs: int = 0
    cases: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0
    worst_at: str = ""
    lengths: dict[str, set[int]] = field(default_factory=dict)
    repeats: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, message: Mapping[str, Any]) -> list[str]:
        """Count what a worker said; returns lines for failures that are new."""
        new = []
        if "outcomes" in message:
            self.programs += 1
            for outcome in message["outcomes"]:
                new += self._outcome(message["program"], outcome)
        if "differing" in message:
            self.repeats = message["repeats"]
            if message["differing"]:
                again = reproducer(message["program"], message["sizes"], self.seed)
                new.append(f"{message['differing']} of {self.repeats} calls gave other bits: {again}")
        self.failures += new
        return new

    def _outcome(self, program: str, outcome: Mapping[str, Any]) -> list[str]:
        if outcome["refused"]:
            self.refused[outcome["problem"]] += 1
            return []
        self.cases += 1
        for name, size in outcome["sizes"].items():
            self.lengths.setdefault(name, set()).add(size)
        ratio = outcome["ratio"]
        if ratio > self.worst:
            self.worst, self.worst_at = ratio, program
        if not outcome["problem"]:
            return []
        return [f"{outcome['problem']}: {reproducer(program, outcome['sizes'], self.seed)}"]

    def died(self, program: str) -> str:
        """Note that the process ended within ``program``."""
        self.failures.append(f"the process died: {program}")
        return self.failures[-1]

    def line(self) -> str:
        """The row of the table."""
        lengths = " ".join(f"{n}:{len(v)}" for n, v in self.lengths.items())
        worst = "inf" if math.isinf(self.worst) else f"{self.worst:.2g}"
        refused = f", {sum(self.refused.values())} refused" if self.refused else ""
        bits = f"{self.repeats} repeats" if self.repeats else "no repeats"
        verdict = f"{len(self.failures)} FAILED" if self.failures else "ok"
        return (
            f"{self.name:32} {self.programs:4} programs {self.cases:5} cases{refused}, lengths {lengths}; "
            f"worst {worst} of what it may be off by; {bits}: {verdict}"
        )
