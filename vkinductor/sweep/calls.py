"""Calls of a compiled program, one after the other, each under other circumstances of memory.

The first call of a program dispatches its kernels; later ones replay a recording of them, which knows where temporaries
and results lie and which operands move. So the calls differ in what memory is at hand: that of the call before, which
makes addresses come again; none of it, as it is still held; what was freed, but full of NaN by then; or little, so that
each allocation frees what it can.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from vkinductor.device import storage
from vkinductor.runtime import context

from .layouts import to_device

# Of each byte: NaN in every float's format.
_NAN = 255
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Memory:
    """What becomes of the memory of the call before this one. ``held``: its operands and results live on, so that all
    of this call lies elsewhere; bits of the results are compared after it. ``spoilt``: freed and taken for NaN, which
    have to be there after the call, too. ``short``: each allocation of this call frees what nobody needs."""

    name: str
    held: bool = False
    spoilt: bool = False
    short: bool = False


FIRST = Memory("the first call")
SECOND = Memory("the second call")
ELSEWHERE = Memory("a call with operands elsewhere", held=True)
SPOILT = Memory("a call after freed memory was written", spoilt=True)
SHORT = Memory("a call while memory is short", held=True, short=True)
AGAIN = Memory("a call after other sizes", held=True)

# Of the first sizes, and by turns of those that follow.
FULL = (FIRST, SECOND, ELSEWHERE, SPOILT, SHORT)
LATER = (ELSEWHERE, SECOND, SPOILT)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The elements as integers, on the CPU: NaN equals itself, 0 is not -0."""
    return x.detach().cpu().contiguous().view(_BITS[x.element_size()])


def same_bits(one: Any, other: Any) -> bool:
    """Whether all tensors in two results are alike to the bit."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(bits(a), bits(b)) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


class Calls:
    """Calls ``function`` with operands on the device; each call knows the memory of the one before."""

    def __init__(self, function: Callable[[list[list[Any]]], list[Any]]) -> None:
        self._function = function
        self._operands: list[list[Any]] = []
        self._results: list[Any] = []
        self._found: list[Any] = []

    def __call__(self, operands: list[list[Any]], memory: Memory = SECOND) -> list[Any]:
        """The results of each of ``operands`` (on the CPU), on the CPU.

        Raises:
            AssertionError: the call has written to results that were held, or to memory that others had taken.
        """
        before = (self._operands, self._results, self._found) if memory.held else ([], [], [])
        places = [x for x in tree_leaves([self._operands, self._results]) if _on_device(x)] if memory.spoilt else []
        sizes = [x.untyped_storage().nbytes() for x in places]
        del places
        self._operands, self._results = [], []
        if memory.spoilt:
            storage.sweep()  # what has died is free at once
        taken = _taken(sizes)
        _taken(sizes)  # free again, for this call's temporaries: they begin as NaN
        allocator = context.get().memory
        with allocator.short() if memory.short else nullcontext():
            self._operands = [to_device(own) for own in operands]
            self._results = self._function(self._operands)
        self._found = [tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), r) for r in self._results]
        if not same_bits(before[1], before[2]):
            raise AssertionError("results of the call before, still held, were written over")
        if not all(bool((bits(x) == _NAN).all()) for x in taken):
            raise AssertionError("memory that the call before had freed was written")
        return self._found


def _on_device(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "vulkan"


def _taken(sizes: list[int]) -> list[torch.Tensor]:
    return [torch.full((nbytes,), _NAN, dtype=torch.uint8, device="vulkan") for nbytes in sizes]
