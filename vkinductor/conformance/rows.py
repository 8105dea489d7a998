"""Entries of operators.csv: operators that other Vulkan backends of torch list, each with what they restrict it to.

The samples of a row include what those restrictions leave out. Rows about quantized storage have no entry yet
(``Row.quantized``); rows about the whole system rather than an operator (``system_rows``) have tests of their own.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import torch

from vkinductor.conformance.entry import Entry, Sample
from vkinductor.conformance.row_cases import CASES, Case

# A row is checked in these; the samples of some hold other dtypes too.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

QUANTIZED_NAMESPACES = ("quantized_decomposed", "torchao")
QUANTIZED_MARKS = ("q8t", "q4gsw", "q8c", "qcs4w", "q8to", "Q4_K", "Q5_K", "Q6_K", "quantized")
SYSTEM_SOURCE = "torch-ir"


class Row(NamedTuple):
    """A line of operators.csv."""

    source: str
    namespace: str
    operator: str
    limits: str

    @property
    def name(self) -> str:
        """Of the entry."""
        return f"row:{self.source}:{self.namespace}.{self.operator}"

    @property
    def quantized(self) -> bool:
        """Whether it is about quantized storage."""
        return self.namespace in QUANTIZED_NAMESPACES or any(mark in self.operator for mark in QUANTIZED_MARKS)


@functools.cache
def rows() -> tuple[Row, ...]:
    """All lines of operators.csv."""
    text = resources.files("vkinductor.conformance").joinpath("operators.csv").read_text()
    return tuple(Row(*line) for line in list(csv.reader(text.splitlines()))[1:])


def system_rows() -> list[Row]:
    """Rows about what a system does rather than about an operator."""
    return [row for row in rows() if row.source == SYSTEM_SOURCE]


def operator_rows() -> list[Row]:
    """Rows that have an entry."""
    return [row for row in rows() if not row.quantized and row.source != SYSTEM_SOURCE]


def cases(row: Row) -> tuple[Case, ...]:
    """The calls that a row is checked with."""
    return CASES[row.namespace, row.operator.partition(".")[0] if row.namespace == "aten" else row.operator]


def entries() -> dict[str, Entry]:
    """Entries by name, in the file's order."""
    return {row.name: _entry(row) for row in operator_rows()}


def _entry(row: Row) -> Entry:
    calls = cases(row)

    def call(which: int, *args: Any) -> Any:
        return calls[which].function(*args)

    def make(dtype: torch.dtype) -> Sequence[Sample]:
        return [Sample((i, *case.arguments(dtype)), {}) for i, case in enumerate(calls)]

    gradients = frozenset(DTYPES) if any(case.gradient for case in calls) else frozenset()
    return Entry(row.name, call, DTYPES, gradients, make, all(case.reproducible for case in calls), {})
