"""Calls with operands elsewhere, results held, and freed memory taken by others: a stale address shows."""

from __future__ import annotations

import pytest
import torch

from vkinductor.device.registry import registry
from vkinductor.device.storage import Layout
from vkinductor.runtime import context
from vkinductor.sweep.calls import AGAIN, ELSEWHERE, FIRST, FULL, LATER, SHORT, SPOILT, Calls, same_bits


class Addition:
    """Of two operands, into the same memory every time where `stale`: as a replay would that has missed a change."""

    def __init__(self, stale: bool = False) -> None:
        self.stale = stale
        self.place: int | None = None
        self.seen: list[tuple[int, int]] = []

    def __call__(self, operands):
        (x, y) = operands[0]
        result = x + y
        if self.stale and self.place is not None:
            registry.current().at(Layout(result.shape, result.stride(), result.dtype), self.place).copy_(result)
        self.place = self.place or result.data_ptr()
        self.seen.append((x.data_ptr(), result.data_ptr()))
        return [result]


def operands():
    return [[torch.randn(300), torch.randn(300)]]


def test_every_call_is_right_and_operands_move():
    addition = Addition()
    calls = Calls(addition)
    own = operands()
    for memory in (*FULL, *LATER, AGAIN):
        assert torch.equal(calls(own, memory)[0], own[0][0] + own[0][1])
    (first, at_first), (_, _), (moved, at_moved), *_ = addition.seen
    assert moved not in (first, at_first)
    assert at_moved not in (first, at_first)


def test_results_that_are_held_are_not_written_over():
    calls = Calls(Addition(stale=True))
    calls(operands(), FIRST)
    with pytest.raises(AssertionError, match="still held, were written over"):
        calls(operands(), ELSEWHERE)


def test_memory_is_short_in_one_call(monkeypatch):
    allocator = context.get().memory
    swept = []
    monkeypatch.setattr(allocator, "on_pressure", lambda: swept.append(1))
    calls = Calls(Addition())
    for memory in FULL:
        before = len(swept)
        calls(operands(), memory)
        assert (len(swept) - before >= 3) == (memory is SHORT), memory


def test_freed_memory_is_not_written():
    calls = Calls(Addition(stale=True))
    calls(operands(), FIRST)
    with pytest.raises(AssertionError, match="had freed was written"):
        calls(operands(), SPOILT)


def test_bits():
    nan, zero = torch.tensor([torch.nan]), torch.zeros(1)
    assert same_bits([nan, 3], [nan.clone(), 3])
    assert not same_bits([zero], [-zero])
