"""Calls of a compiled graph that is one recorded partition, without the wrappers around it.

Between Dynamo and a partition stand AOTAutograd's wrapper and Inductor's: for a model of hundreds of weights they cost
a call more than its replay (80 us of 130 with 248 inputs). A program that consists of one partition
(``recording.whole_program``) passes its arguments on in another order, and its results back. Which goes where is seen
in a call that took the whole way: by identity, so whatever a wrapper changes (a view of an input, a copy of a
misaligned one, an autograd history) is not taken for a passed-on tensor, and such graphs keep all their wrappers.

What Dynamo has guarded holds here as well: sizes, strides and dtypes of the arguments, whether they need gradients, the
gradient mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.device.registry import registry
from vkinductor.device.storage import TorchDevice
from vkinductor.runtime.replay.recording import picker
from vkinductor.runtime.stats import counters

from .alignment import WIDEST
from .recording import RecordedPartition, Replayed, replays

# Calls in which a way is looked for: the first ones compile and record.
_TRIES = 16

_data_ptr = torch.Tensor.data_ptr
_increment_versions: Any = torch._C._increment_version
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack


@dataclass(frozen=True)
class Way:
    """Where arguments and results of a graph go. Positions among the graph's arguments unless said otherwise.

    take: the partition's arguments. written: the arguments whose version counts a write. results: for each of the
    graph's a position among the partition's results, ``-1 - k`` for the k-th argument.
    """

    device: TorchDevice
    partition: RecordedPartition
    take: Callable[[Sequence[Any]], tuple[Any, ...]]
    written: Callable[[Sequence[Any]], tuple[Any, ...]]
    results: tuple[int, ...]


class DirectGraph:
    """A compiled graph: ``compiled``, or where that has been seen to be enough, its partition alone. Thread-safe."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        functools.update_wrapper(self, compiled)
        self.compiled = compiled
        self.way: Way | None = None
        self._tries = _TRIES

    def __call__(self, *args: Any) -> Any:
        """Arguments and results as Dynamo passes them."""
        way = self.way
        if way is None:
            return self.compiled(*args) if self._tries <= 0 else self._look(args)
        if way.device is not registry.current() or _dispatch_modes():
            return self.compiled(*args)
        passed = way.take(args)
        addresses = tuple(map(_data_ptr, passed))
        if not way.partition.knows(addresses) and any(address % WIDEST for address in addresses):
            return self.compiled(*args)
        _increment_versions(way.written(args))
        results = way.partition(list(passed), addresses)
        return [results[at] if at >= 0 else args[-1 - at] for at in way.results]

    def _look(self, args: tuple[Any, ...]) -> Any:
        """A call the whole way, looked at."""
        device = registry.current()
        if device is None:
            return self.compiled(*args)
        before = _state(args)
        counted = counters.snapshot()
        with replays(device) as seen:
            results = self.compiled(*args)
        self._tries -= 1
        if len(seen) == 1 and before is not None:
            self.way = _way(device, seen[0], args, results, before, counted)
        return results


@dataclass(frozen=True)
class _Place:
    """What a write, and nothing but a write, leaves as it is."""

    address: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _state(args: Sequence[Any]) -> list[tuple[_Place, int | None]] | None:
    """Places and versions of the arguments, if all of them are plain tensors and no two the same."""
    if len({id(a) for a in args}) < len(args):
        return None
    states = []
    for a in args:
        if type(a) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or a.device.type != "vulkan":
            return None
        version = None if a.is_inference() else a._version
        states.append((_Place(a.data_ptr(), a.size(), a.stride(), a.storage_offset()), version))
    return states


def _way(
    device: TorchDevice,
    replayed: Replayed,
    args: tuple[Any, ...],
    results: Any,
    before: list[tuple[_Place, int | None]],
    counted: dict[str, Any],
) -> Way | None:
    """The way that a call took, None where it did anything but pass tensors on."""
    partition = replayed.partition
    after = _state(args)
    if not (partition.whole and partition.takes_only_tensors and after and isinstance(results, (tuple, list))):
        return None
    position = {id(a): i for i, a in enumerate(args)}
    taken = [position.get(id(a), -1) for a in replayed.args]
    if min(taken, default=0) < 0 or any(a[0] != b[0] for a, b in zip(before, after, strict=True)):
        return None
    given = {id(result): at for at, result in enumerate(replayed.results)}
    places = []
    for result in results:
        at = given.get(id(result))
        if at is None and id(result) in position:
            at = -1 - position[id(result)]
        if at is None or not isinstance(result, torch.Tensor) or result.requires_grad:
            return None
        places.append(at)
    copied = any(getattr(counters, name) != counted[name] for name in ("copies", "h2d_bytes", "d2h_bytes"))
    versions = [(a[1], b[1]) for a, b in zip(before, after, strict=True)]
    written = [i for i, (old, new) in enumerate(versions) if old != new]
    steps = {new - old for old, new in versions if old is not None and new is not None}
    if copied or counters.fallbacks != counted["fallbacks"] or not steps <= {0, 1}:
        return None
    return Way(device, partition, picker(taken), picker(written), tuple(places))
