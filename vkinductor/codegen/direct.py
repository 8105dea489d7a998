"""Calls of a compiled graph that is one recorded partition, without the wrappers around it.

Between Dynamo and a partition stand AOTAutograd's wrapper and Inductor's: for a model of hundreds of weights they cost
a call more than its replay (80 us of 130 with 248 inputs). A program that consists of one partition
(``recording.whole_program``) passes its arguments on in another order, and its results back. Which goes where is seen
in a call that took the whole way: by identity, so whatever a wrapper changes (a view of an input, a copy of a
misaligned one, an autograd history) is not taken for a passed-on tensor, and such graphs keep all their wrappers. One
thing that is not identical is common and made here as well: another shape of a result (a step's token as [1, 1]).

What Dynamo has guarded holds here as well: sizes, strides and dtypes of the arguments, whether they need gradients, the
gradient mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vkinductor.device.registry import registry
from vkinductor.device.storage import TorchDevice
from vkinductor.runtime.replay.recording import picker
from vkinductor.runtime.stats import counters

from .alignment import WIDEST
from .recording import MAX_FAMILIAR, Familiar, RecordedPartition, Replayed, reinterpret, replays

# Calls in which a way is looked for: the first ones compile and record.
_TRIES = 16

_data_ptr = torch.Tensor.data_ptr
_increment_versions: Any = torch._C._increment_version
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack


@dataclass(frozen=True)
class Way:
    """Where arguments and results of a graph go. Positions among the graph's arguments unless said otherwise.

    take: the partition's arguments. all: whether these are all. written: the arguments whose version counts a write.
    results: for each of the graph's a position among the partition's results, ``-1 - k`` for the k-th argument.
    views: (position among the graph's results, size, stride, offset in elements) of those that see a result of the
    partition in another shape. familiar: addresses, of all arguments in the graph's order or of those taken in the
    partition's, and what the partition knows of them.
    """

    device: TorchDevice
    partition: RecordedPartition
    take: Callable[[Sequence[Any]], tuple[Any, ...]]
    all: bool
    written: Callable[[Sequence[Any]], tuple[Any, ...]]
    results: tuple[int, ...]
    views: tuple[tuple[int, tuple[int, ...], tuple[int, ...], int], ...]
    familiar: dict[tuple[int, ...], Familiar] = field(default_factory=dict)

    def given(self, results: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The graph's results, of the partition's and the graph's arguments."""
        given = [results[at] if at >= 0 else args[-1 - at] for at in self.results]
        for at, size, stride, offset in self.views:
            given[at] = reinterpret(given[at], size, stride, offset)
        return given


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
        device = registry.current()
        if way.device is not device:  # closed, and opened anew: looked for again
            self.way, self._tries = None, _TRIES
            return self.compiled(*args)
        if _dispatch_modes():
            return self.compiled(*args)
        # All that is looked at in a step of hundreds of weights: each costs its cache lines.
        addresses = tuple(map(_data_ptr, args if way.all else way.take(args)))
        familiar = way.familiar.get(addresses)
        if familiar is not None:
            results = way.partition.again(device, familiar, way.take, args)
            if results is not None:
                _increment_versions(way.written(args))
                return way.given(results, args)
        return self._unfamiliar(way, addresses, args)

    def _unfamiliar(self, way: Way, addresses: tuple[int, ...], args: tuple[Any, ...]) -> Any:
        """A call of the partition with arguments at other addresses than before."""
        passed = way.take(args)
        taken = tuple(map(_data_ptr, passed))
        if way.partition.familiar(taken) is None and any(address % WIDEST for address in taken):
            return self.compiled(*args)
        _increment_versions(way.written(args))
        results = way.partition(list(passed), taken)
        familiar = way.partition.familiar(taken)
        if familiar is not None:
            if len(way.familiar) >= MAX_FAMILIAR:
                way.familiar.clear()
            way.familiar[addresses] = familiar
        return way.given(results, args)

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
    places: list[int] = []
    views: list[tuple[int, tuple[int, ...], tuple[int, ...], int]] = []
    for result in results:
        if type(result) is not torch.Tensor or result.requires_grad:
            return None
        at = given.get(id(result))
        if at is None and id(result) in position:
            at = -1 - position[id(result)]
        if at is None:
            at = _seen(result, replayed.results)
            if at is None:
                return None
            offset = int(result.storage_offset() - replayed.results[at].storage_offset())
            views.append((len(places), tuple(result.size()), tuple(result.stride()), offset))
        places.append(at)
    copied = any(getattr(counters, name) != counted[name] for name in ("copies", "h2d_bytes", "d2h_bytes"))
    versions = [(a[1], b[1]) for a, b in zip(before, after, strict=True)]
    written = [i for i, (old, new) in enumerate(versions) if old != new]
    steps = {new - old for old, new in versions if old is not None and new is not None}
    if copied or counters.fallbacks != counted["fallbacks"] or not steps <= {0, 1}:
        return None
    every = len(set(taken)) == len(args)
    return Way(device, partition, picker(taken), every, picker(written), tuple(places), tuple(views))


def _seen(result: torch.Tensor, among: Sequence[Any]) -> int | None:
    """The position of a new tensor that ``result`` is made of: the same memory and dtype, without an autograd view."""
    if result._base is not None or result.is_inference():
        return None
    storage = result.untyped_storage()._cdata
    for at, other in enumerate(among):
        plain = isinstance(other, torch.Tensor) and other._base is None
        if plain and other.dtype == result.dtype and other.untyped_storage()._cdata == storage:
            return at
    return None
