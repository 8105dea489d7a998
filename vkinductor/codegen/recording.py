"""Recorded partitions: the second call of a generated function is captured, later ones replay a recorded program.

A partition is a function that Inductor writes around kernels alone (``compat.partition_kernels``): operators that run
outside, CPU fallbacks among them, stand between partitions. So what a partition does is known from the dispatches of
one call: it is run on stand-ins for memory (``runtime.replay.capture``), and everything it dispatches is noted.

When a call is replayed and when not:

* not the first call, and none while another call is captured or kernels are traced;
* not a partition of fewer than ``MIN_LAUNCHES`` kernels: a dispatch costs no more than a replay;
* not a call whose written inputs overlap other inputs in memory: its program knows no such hazard;
* numbers and sizes are part of a key; each new key is captured again (which costs what the Python program costs) and
  fills in the same program, unless it runs other kernels.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from vkinductor.device.registry import registry
from vkinductor.device.storage import Layout, TorchDevice
from vkinductor.runtime.errors import UnsupportedError
from vkinductor.runtime.replay.capture import Capture, CaptureRefused
from vkinductor.runtime.replay.program import Program
from vkinductor.runtime.replay.recording import Binding, Form, Recording, picker

from .heuristics import compute_units
from .slots import OutputSlots, Slot

MIN_LAUNCHES = 2
# Programs of one partition: shapes that run other kernels (an empty batch, say).
MAX_RECORDINGS = 8
# Addresses of inputs that a partition remembers: results take turns in a few places.
MAX_FAMILIAR = 64

_data_ptr = torch.Tensor.data_ptr
reinterpret: Any = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]

_partitions: weakref.WeakSet[RecordedPartition] = weakref.WeakSet()


@dataclass(frozen=True)
class Output:
    """One result of a call: a constant, an argument, or a view of an argument or of a new tensor.

    source: position among the call's arguments, or ``-1 - k`` for the k-th new tensor. view: (size, stride, offset in
    elements from the source's first), None for the source itself.
    """

    source: int | None
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    constant: Any = None


@dataclass(frozen=True)
class Entry:
    """How one key is replayed. new: the layouts of the new tensors, as ``Recording.outputs`` has them, each with the
    slots that it is made in. returns_arguments: whether any output is one or sees one."""

    recording: Recording
    binding: Binding
    new: tuple[tuple[OutputSlots, Layout], ...]
    outputs: tuple[Output, ...]
    returns_arguments: bool


@dataclass(frozen=True)
class Familiar:
    """Addresses of inputs that were replayed: nothing that is written overlaps, and none of the fixed ones has moved as
    long as the recording has this program. addresses: they and those of constants. moving: ``Recording.pick_moving`` of
    them."""

    entry: Entry
    program: Program | None
    addresses: tuple[int, ...]
    moving: tuple[int, ...]


@dataclass(frozen=True)
class Replayed:
    """One replay: of which partition, its arguments, what it returned."""

    partition: RecordedPartition
    args: tuple[Any, ...]
    results: tuple[Any, ...]


@contextmanager
def replays(device: TorchDevice) -> Iterator[list[Replayed]]:
    """The replays of this thread inside the block, as they happen; those of blocks inside of it not among them."""
    me = threading.get_ident()
    before = device.replayed.get(me)
    seen = device.replayed[me] = []
    try:
        yield seen
    finally:
        if before is None:
            del device.replayed[me]
        else:
            device.replayed[me] = before


def _constants_of(fn: Any) -> dict[str, torch.Tensor]:
    """The tensors on the device among what a generated function reads of its module."""
    code, names = getattr(fn, "__code__", None), getattr(fn, "__globals__", {})
    found = {name: names.get(name) for name in (code.co_names if code is not None else ())}
    return {n: t for n, t in found.items() if isinstance(t, torch.Tensor) and t.device.type == "vulkan"}


class RecordedPartition:
    """Wraps a generated function ``fn(args: list) -> tuple``, which may empty its list. Thread-safe."""

    def __init__(self, fn: Callable[[list[Any]], Any], form: Form = "auto") -> None:
        self.fn = fn
        self.form: Form = form
        self.whole = False
        """Whether the program around it does nothing else (see ``whole_program``)."""
        self.refused: str | None = None
        self._lock = threading.RLock()
        self._device: TorchDevice | None = None
        self._tensors: list[int] = []  # positions of device tensors; the others make up the key
        self._pick = picker(self._tensors)
        self._others: list[int] = []
        self._constants: dict[str, torch.Tensor] = {}  # of the graph, by name among the globals of ``fn``
        self._constants_at: tuple[int, ...] = ()
        self._before: tuple[int, ...] | None = None  # addresses of the first call, and of constants
        self._entries: dict[Any, Entry] = {}
        self._recordings: list[tuple[Recording, tuple[OutputSlots, ...]]] = []
        self._familiar: dict[tuple[int, ...], Familiar] = {}  # where no numbers are among the arguments
        _partitions.add(self)

    @property
    def takes_only_tensors(self) -> bool:
        """Whether no number is among its arguments, as far as a first call has shown."""
        return bool(self._tensors) and not self._others

    def __call__(self, args: list[Any], addresses: tuple[int, ...] | None = None) -> Any:
        """Run on ``args``: tensors and numbers in the positions of the first call. addresses: those of all arguments,
        where it ``takes_only_tensors`` and somebody has asked for them already."""
        device = registry.current()
        if (
            device is None
            or self.refused is not None
            or device.stream.captures.by_thread
            or device.stream.tracer is not None
        ):
            return self.fn(args)
        with self._lock:
            if device is not self._device:
                self._start(device, args)
                return self.fn(args)
            if addresses is None:
                addresses = tuple(map(_data_ptr, self._pick(args)))
            familiar = self._familiar.get(addresses)
            if familiar is not None:
                result = self.again(device, familiar, tuple, args)
                if result is not None:
                    args.clear()
                    return result
            key = tuple([_scalar(args[i]) for i in self._others]) if self._others else ()
            for _ in range(3):
                every = addresses + self._constants_at
                entry = self._find(key) or self._capture(device, key, args, every)
                if entry is None:
                    return self.fn(args)
                if entry.recording.written_inputs and not self._apart(entry, every):
                    return self.fn(args)
                if entry.recording.program is None or entry.recording.moved(every):
                    continue
                result = self._replay(entry, args, every, entry.recording.pick_moving(every))
                if result is not None:
                    if not self._others:
                        self._remember(entry, addresses)
                    self._note(device, tuple(args), result)
                    args.clear()
                    return result
            return self.fn(args)

    def familiar(self, addresses: tuple[int, ...]) -> Familiar | None:
        """What is known of a call with tensors at these addresses, for `again`, if it has been replayed and is not
        forgotten."""
        return self._familiar.get(addresses)

    def again(
        self,
        device: TorchDevice,
        familiar: Familiar,
        take: Callable[[Sequence[Any]], tuple[Any, ...]],
        args: Sequence[Any],
    ) -> tuple[Any, ...] | None:
        """A call whose arguments are ``take(args)``, tensors at these very addresses: nothing of it is looked at anew.

        None, and nothing done, where it is no longer as it was: to be called as ever then.
        """
        stream, entry = device.stream, familiar.entry
        if stream.captures.by_thread or stream.tracer is not None:
            return None
        with self._lock:
            if device is not self._device or entry.recording.program is not familiar.program:
                return None
            passed = take(args) if entry.returns_arguments or device.replayed else ()
            result = self._replay(entry, passed, familiar.addresses, familiar.moving)
            if result is not None:
                self._note(device, passed, result)
            return result

    def _note(self, device: TorchDevice, args: tuple[Any, ...], result: tuple[Any, ...]) -> None:
        """After a replay: tell who looks."""
        if device.replayed and (seen := device.replayed.get(threading.get_ident())) is not None:
            seen.append(Replayed(self, args, result))

    def _remember(self, entry: Entry, addresses: tuple[int, ...]) -> None:
        if len(self._familiar) >= MAX_FAMILIAR:
            self._familiar.clear()
        recording, every = entry.recording, addresses + self._constants_at
        self._familiar[addresses] = Familiar(entry, recording.program, every, recording.pick_moving(every))

    def _find(self, key: Any) -> Entry | None:
        """The entry of a key, unless its recording has let go of what was filled in for it."""
        entry = self._entries.get(key)
        return entry if entry is not None and entry.recording.find(key) is entry.binding else None

    def _start(self, device: TorchDevice, args: list[Any]) -> None:
        self._clear()
        self._device = device
        self._tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.device.type == "vulkan"]
        self._pick = picker(self._tensors)
        here = set(self._tensors)
        self._others = [i for i in range(len(args)) if i not in here]
        self._constants = _constants_of(self.fn)
        self._constants_at = tuple(map(_data_ptr, self._constants.values()))
        self._before = tuple(args[i].data_ptr() for i in self._tensors) + self._constants_at
        if any(isinstance(args[i], torch.Tensor) and args[i].dim() for i in self._others):
            self.refused = "a CPU tensor among its arguments"

    def _replay(
        self, entry: Entry, args: Sequence[Any], addresses: tuple[int, ...], moving: tuple[int, ...]
    ) -> tuple[Any, ...] | None:
        """The results of a replay, None when the recording has to be bound anew."""
        slots: list[Slot] = []
        try:
            for pool, layout in entry.new:
                slots.append(pool.take(layout.nbytes))
            if not entry.recording.replay(entry.binding, addresses, tuple([slot.address for slot in slots]), moving):
                return None
            new = [pool.lend(slot, layout) for (pool, layout), slot in zip(entry.new, slots, strict=True)]
        finally:
            for slot in slots:
                slot.taken = False
        results = []
        for output in entry.outputs:
            if output.source is None:
                results.append(output.constant)
                continue
            source = args[output.source] if output.source >= 0 else new[-1 - output.source]
            results.append(source if output.view is None else reinterpret(source, *output.view))
        return tuple(results)

    # Capturing.

    def _capture(self, device: TorchDevice, key: Any, args: list[Any], addresses: tuple[int, ...]) -> Entry | None:
        try:
            with device.stream.captures.on(device.stream) as capture:
                stand_ins, call = self._stand_ins(device, capture, args)
                results = self._with_stand_ins(device, capture)(call)
                outputs, new = self._describe(capture, stand_ins, results)
            if len(capture.launches) < MIN_LAUNCHES:
                raise CaptureRefused(f"{len(capture.launches)} kernels")
        except (CaptureRefused, UnsupportedError) as error:
            if not self._recordings:  # else it is this key (an empty batch) that cannot be recorded
                self.refused = str(error)
            return None
        recording, slots = self._recording(device, capture, new, addresses)
        binding = recording.bind(key, capture)
        made_in = tuple((pool, capture.notes[r]) for pool, r in zip(slots, new, strict=True))
        returned = any(output.source is not None and output.source >= 0 for output in outputs)
        entry = Entry(recording, binding, made_in, outputs, returned)
        # What was bound to an earlier program of this recording is gone, and so is what its LRU dropped.
        self._entries = {k: e for k, e in self._entries.items() if e.recording.bindings.get(k) is e.binding}
        self._entries[key] = entry
        return entry

    def _stand_ins(self, device: TorchDevice, capture: Capture, args: list[Any]) -> tuple[list[Any], list[Any]]:
        """Stand-ins for the device tensors, and the list of arguments for a captured call."""
        call = list(args)
        stand_ins = []
        for i in self._tensors:
            layout = device.layout(args[i].size(), args[i].stride(), args[i].dtype)
            tensor = device.at(layout, capture.resource(layout.nbytes, layout))
            stand_ins.append(tensor)
            call[i] = tensor
        return stand_ins, call

    def _with_stand_ins(self, device: TorchDevice, capture: Capture) -> Callable[[list[Any]], Any]:
        """``fn`` with stand-ins for the graph's constants as well, which are inputs that never move."""
        if not self._constants:
            return self.fn
        names: dict[str, Any] = {}
        for name, tensor in self._constants.items():
            layout = device.layout(tensor.size(), tensor.stride(), tensor.dtype)
            names[name] = device.at(layout, capture.resource(layout.nbytes, layout))
        fn: Any = self.fn
        return types.FunctionType(fn.__code__, fn.__globals__ | names, fn.__name__, fn.__defaults__, fn.__closure__)

    def _describe(
        self, capture: Capture, stand_ins: list[Any], results: Sequence[Any]
    ) -> tuple[tuple[Output, ...], tuple[int, ...]]:
        """What the results are, and which resources are new tensors."""
        outputs: list[Output] = []
        new: list[int] = []
        known = {id(tensor): i for tensor, i in zip(stand_ins, self._tensors, strict=True)}
        for result in results:
            if not isinstance(result, torch.Tensor):
                outputs.append(Output(None, constant=result))
                continue
            if id(result) in known:
                outputs.append(Output(known[id(result)]))
                continue
            if result.device.type != "vulkan":
                raise CaptureRefused(f"a result on {result.device}")
            resource = capture.pointer(result.untyped_storage().data_ptr()).resource
            layout = capture.notes[resource]
            if layout.dtype != result.dtype:
                raise CaptureRefused(f"a result that sees {layout.dtype} as {result.dtype}")
            if len(self._tensors) <= resource < len(self._tensors) + len(self._constants):
                raise CaptureRefused("a result that is a constant of the graph")
            if resource < len(self._tensors):
                source = self._tensors[resource]
            else:
                if resource not in new:
                    new.append(resource)
                source = -1 - new.index(resource)
            place = (tuple(result.size()), tuple(result.stride()), int(result.storage_offset()))
            whole = source < 0 and place == (layout.size, layout.stride, 0)
            outputs.append(Output(source, None if whole else place))
        return tuple(outputs), tuple(new)

    def _recording(
        self, device: TorchDevice, capture: Capture, new: tuple[int, ...], addresses: tuple[int, ...]
    ) -> tuple[Recording, tuple[OutputSlots, ...]]:
        """The recording that this capture fits, or a new one."""
        for recording, slots in self._recordings:
            if recording.outputs == new and recording.fits(capture.launches, capture.sizes):
                return recording, slots
        units = compute_units(device.runtime.info)
        recording = Recording(device.runtime, capture, len(addresses), new, self.form, units)
        recording.settle(self._before or addresses, addresses)
        slots = tuple(OutputSlots(device) for _ in new)
        self._recordings.append((recording, slots))
        if len(self._recordings) > MAX_RECORDINGS:
            dropped, _ = self._recordings.pop(0)
            self._entries = {k: e for k, e in self._entries.items() if e.recording is not dropped}
        return recording, slots

    def _apart(self, entry: Entry, addresses: tuple[int, ...]) -> bool:
        """Whether no input that the program writes overlaps another input."""
        sizes = entry.binding.sizes
        written = entry.recording.written_inputs
        spans = sorted((a, a + sizes[r], r in written) for r, a in enumerate(addresses) if sizes[r])
        end, end_written = 0, 0
        for lo, hi, writes in spans:
            if lo < end_written or (writes and lo < end):
                return False
            end = max(end, hi)
            if writes:
                end_written = max(end_written, hi)
        return True

    def _clear(self) -> None:
        self._entries = {}
        self._recordings = []
        self._familiar = {}
        self.refused = None

    def trim(self) -> None:
        """Free output memory that nobody uses, unless the partition is busy on another thread."""
        if self._lock.acquire(blocking=False):
            try:
                for _, slots in self._recordings:
                    for pool in slots:
                        pool.trim()
            finally:
                self._lock.release()


def _scalar(value: Any) -> Any:
    """A number among the arguments; kernels read zero-dimensional CPU tensors as numbers."""
    return value.item() if isinstance(value, torch.Tensor) else value


def recorded(fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """What generated code decorates its partitions with."""
    return functools.update_wrapper(RecordedPartition(fn), fn)


def recorded_as(form: Form) -> Callable[[Callable[[list[Any]], Any]], Callable[[list[Any]], Any]]:
    """The same with a program of this form, where its kernels allow it."""
    return lambda fn: functools.update_wrapper(RecordedPartition(fn, form), fn)


def whole_program(partition: RecordedPartition) -> None:
    """What a generated program says of the partition that it consists of: it only passes arguments and results on."""
    partition.whole = True


def recordings() -> list[Recording]:
    """The recordings of all partitions alive, for reports."""
    return [recording for partition in list(_partitions) for recording, _ in partition._recordings]


def trim() -> None:
    """Free the memory that recordings keep for outputs and nobody uses."""
    for partition in list(_partitions):
        partition.trim()
