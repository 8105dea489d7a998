"""What of a captured call is fixed in its program and what is filled in at each replay.

Fixed at first: everything but the addresses of outputs and of the inputs that moved between the first two calls. What
turns out to vary (sizes, scalars, grids, an input's address) moves to argument memory, and the program is recorded
again: a few times at most, since things only ever move in that direction and intermediates that outgrow their place
get twice the room.
"""

from __future__ import annotations

import operator
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vkinductor.runtime.replay.capture import Capture, Launch, Pointer, lifetimes
from vkinductor.runtime.replay.chained import ChainedProgram, NotChained, pays, read_early
from vkinductor.runtime.replay.combine import NotCombined
from vkinductor.runtime.replay.persistent import PersistentProgram
from vkinductor.runtime.replay.plan import MemoryPlan, Value, check, plan
from vkinductor.runtime.replay.program import Instance, Program, Step, pack_groups
from vkinductor.runtime.replay.resources import grow_scratch

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.hazards import Ranges
    from vkinductor.runtime.pipeline import Pipeline
    from vkinductor.runtime.replay.capture import Access

Form = Literal["auto", "persistent", "chained", "dispatches"]

# Shapes a recording keeps filled-in arguments for.
MAX_BINDINGS = 64
# After so many moved inputs one by one, all inputs count as moving.
_MAX_MOVES = 4
_ALIGNMENT = 16
# In a program's own address space scratch memory begins at 0 and each other resource has this much for itself.
_SPACE_BITS = 44

_ADDRESS = struct.Struct("<Q")


@dataclass(frozen=True, eq=False)
class Binding:
    """The arguments of one key (shapes and scalars), filled in but for addresses that move.

    image: the contents of argument memory. patches: (offset there, resource, addend). sizes: bytes by resource.
    """

    image: bytes
    patches: tuple[tuple[int, int, int], ...]
    sizes: tuple[int, ...]


class Recording:
    """One sequence of kernels over `inputs` inputs (resources 0 to inputs - 1), `outputs` and scratch resources.

    Not thread-safe: the owner holds a lock of its own. Addresses are those of inputs and outputs, in the order of
    `moving_resources`. form: what its program is, one kernel, dispatches that wait for each other, or dispatches with
    barriers; "auto": one of the latter. units: the device's compute units.
    """

    def __init__(
        self,
        device: Device,
        capture: Capture,
        inputs: int,
        outputs: Sequence[int],
        form: Form = "auto",
        units: int = 1,
    ) -> None:
        self._device = device
        self._form: Form = form
        self._units = units
        self.refused: str | None = None  # why the program has not the form that it was to have
        self.inputs = inputs
        self.outputs = tuple(outputs)
        self.launches = tuple(capture.launches)
        self.name = f"{len(self.launches)} kernels from {self.launches[0].pipeline.source.name}"
        count = len(capture.sizes)
        outside = {*range(inputs), *outputs}
        self.scratch = tuple(r for r in range(count) if r not in outside)
        self._spans = lifetimes(self.launches, count)
        touched = [access for launch in self.launches for access in launch.writes]
        self.written_inputs = frozenset(a.resource for a in touched if a.resource < inputs)
        self._written = frozenset(a.resource for a in touched)
        self.capacity = {r: capture.sizes[r] for r in self.scratch}
        self._stable: dict[int, int] = {}  # input -> its address, as long as it has never changed
        self._moves = 0
        self._varying: set[int] = set()  # launches whose arguments differ between keys
        self._indirect: set[int] = set()  # launches whose grids do
        self.program: Program | None = None
        self._scratch_address = 0
        self._plan = MemoryPlan((), 0)
        self.bindings: OrderedDict[Hashable, Binding] = OrderedDict()

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the scratch range that the intermediates share."""
        return self._plan.nbytes

    def settle(self, before: Sequence[int], now: Sequence[int]) -> None:
        """Take the inputs whose addresses are the same in two calls as fixed."""
        self._stable = {r: now[r] for r in range(self.inputs) if before[r] == now[r]}

    def fits(self, launches: Sequence[Launch], sizes: Sequence[int]) -> bool:
        """Whether another capture has the same kernels on the same resources."""
        if len(launches) != len(self.launches) or len(sizes) != len(self._spans):
            return False
        return all(map(_same_shape, launches, self.launches))

    def bind(self, key: Hashable, capture: Capture) -> Binding:
        """The arguments for `key`, whose call was captured; `fits` must hold. May have to record anew."""
        self._compare(capture)
        if self.program is None:
            self._prepare()
        binding = self._fill(capture.launches, capture.sizes)
        self.bindings[key] = binding
        while len(self.bindings) > MAX_BINDINGS:
            self.bindings.popitem(last=False)
        return binding

    def find(self, key: Hashable) -> Binding | None:
        """The arguments kept for `key`."""
        binding = self.bindings.get(key)
        if binding is not None and len(self.bindings) > 1:
            self.bindings.move_to_end(key)
        return binding

    def _compare(self, capture: Capture) -> None:
        """Let what differs from the first capture vary from now on."""
        varying = {i for i, pair in enumerate(zip(capture.launches, self.launches, strict=True)) if _differs(*pair)}
        indirect = {
            i
            for i, (new, old) in enumerate(zip(capture.launches, self.launches, strict=True))
            if new.groups != old.groups
        }
        grown = [r for r in self.scratch if capture.sizes[r] > self.capacity[r]]
        for r in grown:
            self.capacity[r] = 2 * capture.sizes[r]
        if grown or not (varying <= self._varying and indirect <= self._indirect):
            self._varying |= varying
            self._indirect |= indirect
            self.discard()

    def discard(self) -> None:
        """Forget the program and what was filled in for it."""
        if self.program is not None:
            self.program.retire()
        self.program = None
        self.bindings.clear()

    def moved(self, addresses: Sequence[int]) -> bool:
        """Let inputs move that were thought fixed. Returns whether any had moved: bindings are then gone."""
        if self.program is not None and self._pick_fixed(addresses) == self._fixed:
            return False
        moved = [r for r, address in self._stable.items() if addresses[r] != address]
        if not moved:
            return False
        self._moves += 1
        gone = self._stable.keys() if self._moves >= _MAX_MOVES else set(moved)
        self._stable = {r: address for r, address in self._stable.items() if r not in gone}
        self.discard()
        return True

    # Laying the program out.

    def _prepare(self) -> None:
        values = [Value(self.capacity[r], *self._spans[r]) for r in self.scratch]
        made = plan(values)
        check(values, made)
        self._plan = made
        grow_scratch(self._device, made.nbytes)
        shared = self._device.stream.shared
        self._scratch_address = shared.scratch_address
        self._offset = dict(zip(self.scratch, made.offsets, strict=True))
        self._layout: list[tuple[Pipeline, int | None, int | None]] = []  # pipeline, arguments at, groups at
        pipelines = self._device.pipelines
        at = 0
        for i, launch in enumerate(self.launches):
            args_at = groups_at = None
            pipeline = launch.pipeline
            pushed = pipeline.inline_args and i not in self._varying and not self._touches_moving(launch)
            if pipeline.source.layout.fields and not pushed:
                pipeline = pipelines.get(pipeline.source.with_argument_block())
                args_at = at = (at + _ALIGNMENT - 1) & -_ALIGNMENT
                at += pipeline.source.layout.nbytes
            if i in self._indirect:
                groups_at = at = (at + 3) & -4
                at += 12
            self._layout.append((pipeline, args_at, groups_at))
        self._argument_bytes = at
        # A model has hundreds of weights: of each call's addresses most are compared, and few make an instance's key.
        fixed = sorted(self._stable)
        self._fixed = tuple(self._stable[r] for r in fixed)
        self._pick_fixed = picker(fixed)
        self.pick_moving = picker([r for r in range(self.inputs) if r not in self._stable])
        self._expect_others()
        self.program = self._program(list(map(self._step, self.launches, self._layout)), at)

    def _program(self, steps: list[Step], argument_bytes: int) -> Program:
        form, device = self._form, self._device
        if form == "auto" and pays(device.info, steps, self._units):
            form = "chained"
        if self.refused is None:
            try:
                if form == "persistent":
                    return PersistentProgram(device, steps, argument_bytes, self._units)
                if form == "chained":
                    return ChainedProgram(device, steps, argument_bytes, self._units)
            except (NotCombined, NotChained) as error:
                self.refused = str(error)
        return Program(self._device, steps, argument_bytes)

    def _expect_others(self) -> None:
        """Start making what the next key will need if numbers (sizes, scalars) turn out to vary."""
        pipelines = self._device.pipelines
        for launch, (pipeline, args_at, _) in zip(self.launches, self._layout, strict=True):
            if args_at is None and any(kind != "ptr" for _, kind in pipeline.source.layout.fields):
                pipelines.prefetch(launch.pipeline.source.with_argument_block())

    def _touches_moving(self, launch: Launch) -> bool:
        return any(isinstance(v, Pointer) and self._address(v.resource) is None for v in launch.values)

    def _address(self, resource: int) -> int | None:
        """The address of a resource if it is fixed."""
        offset = self._offset.get(resource)
        return self._stable.get(resource) if offset is None else self._scratch_address + offset

    def _step(self, launch: Launch, place: tuple[Pipeline, int | None, int | None]) -> Step:
        pipeline, args_at, groups_at = place
        pushed = None
        if args_at is None:
            pushed = pipeline.pack(*self._resolve(launch)) if launch.values else b""
        groups = launch.groups if groups_at is None else None
        reads, writes = self._ranges(launch.reads), self._ranges(launch.writes)
        constant, early = self._constant(launch), self._reads_early(launch)
        return Step(pipeline, pushed, args_at or 0, groups, groups_at or 0, reads, writes, constant, early)

    def _reads_early(self, launch: Launch) -> bool:
        """Whether ``launch`` reads something before its kernel says that others' results are to be there, and no other
        kernel of the program writes that."""
        source = launch.pipeline.source
        names = read_early(source)
        if not names:
            return False
        values = zip(source.layout.fields, launch.values, strict=True)
        read = {value.resource for (name, _), value in values if name in names and isinstance(value, Pointer)}
        return not any(a.resource in read for other in self.launches if other is not launch for a in other.writes)

    def _constant(self, launch: Launch) -> tuple[int, int]:
        """Address and bytes of the largest part of an input that ``launch`` reads, nothing writes and never moved."""
        fixed = [a for a in launch.reads if a.resource in self._stable and a.resource not in self._written]
        if not fixed:
            return (0, 0)
        access = max(fixed, key=lambda a: a.nbytes)
        return self._stable[access.resource] + access.offset, access.nbytes

    def _ranges(self, accesses: Sequence[Access]) -> Ranges:
        """Ranges in the program's own address space; whole resources once anything varies."""
        ranges = []
        for resource, offset, nbytes in accesses:
            base = self._offset.get(resource)
            if base is None:
                base = (resource + 1) << _SPACE_BITS
                whole = 1 << (_SPACE_BITS - 1)
            else:
                whole = self.capacity[resource]
            ranges.append((base, whole) if self._varying or self._indirect else (base + offset, nbytes))
        return ranges

    def _resolve(self, launch: Launch) -> list[int | float]:
        """The values of a launch's arguments; 0 for addresses that move."""
        values: list[int | float] = []
        for value in launch.values:
            if isinstance(value, Pointer):
                base = self._address(value.resource)
                values.append(0 if base is None else base + value.offset)
            else:
                values.append(value)
        return values

    def _fill(self, launches: Sequence[Launch], sizes: Sequence[int]) -> Binding:
        image = bytearray(self._argument_bytes)
        patches = []
        for launch, (pipeline, args_at, groups_at) in zip(launches, self._layout, strict=True):
            if args_at is not None:
                layout = pipeline.source.layout
                packed = pipeline.pack(*self._resolve(launch))
                image[args_at : args_at + len(packed)] = packed
                for (name, _), value in zip(layout.fields, launch.values, strict=True):
                    if isinstance(value, Pointer) and self._address(value.resource) is None:
                        patches.append((args_at + layout.offsets[name], value.resource, value.offset))
            if groups_at is not None:
                image[groups_at : groups_at + 12] = pack_groups(launch.groups)
        return Binding(bytes(image), tuple(patches), tuple(sizes))

    # Replaying.

    def replay(
        self,
        binding: Binding,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...] = (),
        moving: tuple[int, ...] | None = None,
    ) -> bool:
        """Submit the program for `binding`; addresses of the inputs and of `outputs` (which may stand in the first).
        moving: what `pick_moving` gives for the inputs, where it is known.

        False when the scratch range has moved or shrunk meanwhile: the program is gone, bind again.
        """
        program, stream = self.program, self._device.stream
        assert program is not None
        with stream.lock:
            shared = stream.shared
            # Released and made anew it may be at the same address, but smaller.
            moved = shared.scratch_address != self._scratch_address or shared.scratch_bytes < self._plan.nbytes
            if self._plan.nbytes and moved:
                self.discard()
                return False
            moving = (self.pick_moving(inputs) if moving is None else moving) + inputs[self.inputs :] + outputs
            instance = program.instance(binding, moving)
            if instance.bound is not binding or instance.addresses != moving:
                self._write(instance, binding, inputs + outputs)
                instance.addresses = moving
            stream.replay(instance, self.name, program.dispatches, program.barriers)
        return True

    def _write(self, instance: Instance, binding: Binding, addresses: tuple[int, ...]) -> None:
        by_resource = dict(zip((*range(self.inputs), *self.outputs), addresses, strict=True))
        view = instance.view
        if view is not None:
            if instance.bound is not binding:
                view[0 : len(binding.image)] = binding.image
            bias = self._device.stream.bias
            pack = _ADDRESS.pack_into
            for at, resource, addend in binding.patches:
                pack(view, at, by_resource[resource] + addend - bias)
        instance.bound = binding
        reads: list[tuple[int, int]] = []
        writes: list[tuple[int, int]] = []
        for resource, address in by_resource.items():
            (writes if resource in self._written else reads).append((address, binding.sizes[resource]))
        if self._plan.nbytes:
            writes.append((self._scratch_address, self._plan.nbytes))
        instance.reads, instance.writes = reads, writes

    def __del__(self) -> None:
        if self.program is not None:
            self.program.retire()


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes the elements at `positions` out of a sequence."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: tuple(values[position] for position in positions)


def _same_shape(new: Launch, old: Launch) -> bool:
    """Whether two launches run one kernel on the same resources."""
    if new.pipeline is not old.pipeline or len(new.reads) != len(old.reads) or len(new.writes) != len(old.writes):
        return False
    pairs = zip((*new.reads, *new.writes), (*old.reads, *old.writes), strict=True)
    if any(a.resource != b.resource for a, b in pairs):
        return False
    for a, b in zip(new.values, old.values, strict=True):
        if isinstance(a, Pointer) != isinstance(b, Pointer):
            return False
        if isinstance(a, Pointer) and isinstance(b, Pointer) and a.resource != b.resource:
            return False
    return True


def _differs(new: Launch, old: Launch) -> bool:
    return new.values != old.values or new.reads != old.reads or new.writes != old.writes
