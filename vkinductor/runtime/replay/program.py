"""A program on the device: secondary command buffers that differ only in the argument memory they read.

Owns how launches become commands: which arguments are push constants (fixed for good, and fastest to read) and which
lie in argument memory (patched between submits), direct and indirect dispatches, barriers. What is fixed and what is
patched is `recording`'s decision.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vkinductor.runtime.barriers import TO_COMPUTE
from vkinductor.runtime.errors import ProgramFailedError, check
from vkinductor.runtime.hazards import HazardTracker, Ranges
from vkinductor.runtime.replay.resources import Arguments
from vkinductor.runtime.stats import counters

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.pipeline import Pipeline

_STAGE_COMPUTE = 0x20
_BIND_COMPUTE = 1

_GROUPS = struct.Struct("<III")


@dataclass(frozen=True)
class Step:
    """One dispatch of a program.

    pushed: its arguments as push constants, None when they lie in argument memory at `args_at`. groups: workgroups,
    None when they lie there too, at `groups_at`. reads, writes: ranges in the program's own address space. constant:
    address and bytes of the largest part of memory that it reads and no step writes, where that is fixed. early: no
    other step writes what it reads before it says that others' results are to be there.
    """

    pipeline: Pipeline
    pushed: bytes | None
    args_at: int
    groups: tuple[int, int, int] | None
    groups_at: int
    reads: Ranges
    writes: Ranges
    constant: tuple[int, int] = (0, 0)
    early: bool = False


@dataclass
class Instance:
    """Recorded command buffers (one but where a watchdog bites) and their argument memory. `value`: of the latest
    submission that runs them. `begins`: the stage of their first commands, as a barrier has it. `primaries`: primary
    command buffers that run one of them after a barrier, by its position and what the barrier waits for.

    `bound` and `addresses`, those that vary, say for what its memory is filled in; `reads`, `writes`: the ranges behind
    that.
    """

    commands: tuple[Any, ...]
    arguments: Arguments | None
    view: Any
    value: int = 0
    bound: Any = None
    addresses: tuple[int, ...] = ()
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    begins: int = TO_COMPUTE
    primaries: dict[tuple[int, int], Any] = field(default_factory=dict)


class Program:
    """Steps in order, recorded once for each instance. The stream's lock is held by every caller.

    `barriers`: pipeline barriers between the steps; whoever runs the program waits for what came before. `dispatches`:
    that a replay runs.
    """

    # Where in the memory of instances a word says that a workgroup gave up, and what that means; None: none does.
    failed_at: int | None = None
    failure = ""

    # Instances in flight at a time: the host fills in one while the device runs others. As many dispatches as the
    # stream has in flight when it launches them, so that a host that is ahead waits no sooner; but so many buffers.
    FEWEST_INSTANCES, MOST_INSTANCES, DISPATCHES_IN_FLIGHT = 3, 256, 2048

    def __init__(self, device: Device, steps: Sequence[Step], argument_bytes: int) -> None:
        self._device = device
        self.steps = tuple(steps)
        self.argument_bytes = argument_bytes
        self.barriers = 0
        self.dispatches = len(steps)
        wanted = max(self.FEWEST_INSTANCES, self.DISPATCHES_IN_FLIGHT // max(1, len(self.steps)))
        self.max_instances = min(self.MOST_INSTANCES, wanted)
        self._masks = self._barriers()
        # What an instance is filled in for -> the instance; the one that was used longest ago first.
        self._instances: OrderedDict[tuple[Any, tuple[int, ...]], Instance] = OrderedDict()

    def _barriers(self) -> list[int]:
        hazards = HazardTracker()
        masks = [hazards.compute(step.reads, step.writes) for step in self.steps]
        self.barriers = sum(map(bool, masks))
        return masks

    def instance(self, bound: Any, addresses: tuple[int, ...]) -> Instance:
        """One that is filled in like this (also while it is in flight), or that may be.

        Raises ProgramFailedError, once, where workgroups of its last run gave up.
        """
        instances, key = self._instances, (bound, addresses)
        instance = instances.get(key)
        if instance is not None:
            instances.move_to_end(key)
            self._check_ended(instance)
            return instance
        if instances:
            oldest = next(iter(instances))
            submissions = self._device.stream.submissions
            free = instances[oldest].value <= submissions.completed()
            if free or len(instances) >= self.max_instances:
                instance = instances.pop(oldest)
                submissions.wait(instance.value)
        instance = instances[key] = instance or self._record()
        self._check_ended(instance)
        return instance

    def _check_ended(self, instance: Instance) -> None:
        at, view = self.failed_at, instance.view
        if at is None or instance.value > self._device.stream.submissions.completed():
            return
        if struct.unpack_from("<I", view, at)[0]:
            view[at : at + 4] = bytes(4)
            raise ProgramFailedError(f"{self.failure}: results of the last call are not complete")

    def _record(self) -> Instance:
        device = self._device
        ffi, stream = device.ffi, device.stream
        shared = stream.shared
        shared.collect(stream.submissions.completed())
        arguments = shared.arguments(self.argument_bytes) if self.argument_bytes else None
        most = stream.program_dispatches or len(self.steps)
        commands = tuple(self._encode(at, at + most, arguments) for at in range(0, len(self.steps), most))
        counters.recordings += 1
        view = None
        if arguments is not None:
            view = ffi.buffer(ffi.cast("char *", arguments.host), arguments.nbytes)
        return Instance(commands, arguments, view)

    def begin(self) -> Any:
        """A command buffer that is being recorded, for any number of submissions at a time."""
        return self._device.stream.shared.begin_secondary()

    def bind(self, command: Any, pipeline: Pipeline) -> None:
        """Record that what follows runs `pipeline`."""
        self._device.vk.vkCmdBindPipeline(command, _BIND_COMPUTE, pipeline.handle)

    def push(self, command: Any, pipeline: Pipeline, pushed: bytes) -> None:
        """Record its push constants, which Vulkan copies."""
        data = self._device.ffi.from_buffer(pushed)
        self._device.vk.vkCmdPushConstants(command, pipeline.layout, _STAGE_COMPUTE, 0, len(pushed), data)

    def _encode(self, first: int, end: int, arguments: Arguments | None) -> Any:
        """A command buffer with the steps from `first` to before `end`."""
        vk, stream = self._device.vk, self._device.stream
        command, barriers = self.begin(), stream.barriers
        bound: Pipeline | None = None
        for at, (step, mask) in enumerate(zip(self.steps[first:end], self._masks[first:end], strict=True)):
            if mask and at:
                barriers.record(command, mask, TO_COMPUTE)
            pipeline = step.pipeline
            if pipeline is not bound:
                self.bind(command, pipeline)
                bound = pipeline
            pushed = step.pushed
            if pushed is None:
                assert arguments is not None
                pushed = struct.pack("<Q", arguments.address + step.args_at - stream.bias)
            if pushed:
                self.push(command, pipeline, pushed)
            if step.groups is not None:
                vk.vkCmdDispatch(command, *step.groups)
            else:
                assert arguments is not None
                vk.vkCmdDispatchIndirect(command, arguments.block.buffer, arguments.offset + step.groups_at)
        check(vk.vkEndCommandBuffer(command), "vkEndCommandBuffer")
        return command

    def retire(self) -> None:
        """Give the command buffers back once they are no longer in flight. Any thread, any time."""
        retired = self._device.stream.shared.retired
        while self._instances:
            _, instance = self._instances.popitem()
            commands = (*instance.primaries.values(), *instance.commands)
            retired.append((instance.value, commands, instance.arguments))


def pack_groups(groups: tuple[int, int, int]) -> bytes:
    """Workgroup counts as `vkCmdDispatchIndirect` reads them."""
    return _GROUPS.pack(*groups)
