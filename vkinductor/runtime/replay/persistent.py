"""A program as one persistent kernel: workgroups that stay for all of its steps and meet between those that depend.

A barrier between two dispatches costs a GPU some 2.7 us, one inside a kernel 1.5 us (H100). Each workgroup waits there
for all others, so they must all be resident: as many are launched as a trial has shown to be, and a wait that takes
too long ends the kernel with an error. Kernels that do not fit into one stay dispatches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vkinductor.runtime.barriers import ALL_SOURCES, TO_COMPUTE, TO_COMPUTE_AND_TRANSFER
from vkinductor.runtime.drivers import driver_of
from vkinductor.runtime.errors import VulkanError, check
from vkinductor.runtime.replay.combine import (
    CONTROL_BYTES,
    FAILED_AT,
    NO_KERNEL,
    STEP_FORMAT,
    NotCombined,
    combined,
)
from vkinductor.runtime.replay.program import Instance, Program, Step
from vkinductor.runtime.stats import counters

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.replay.resources import Arguments

_STEP = struct.Struct(STEP_FORMAT)
_ALIGNMENT = 16
# Polls before a workgroup gives up: about a second on a GPU; in a trial, some milliseconds.
_POLLS, _TRIAL_POLLS = 1 << 21, 1 << 14
# Workgroups a compute unit that are tried, the most first.
_PER_UNIT = (4, 3, 2, 1)
_SECTOR = 32
# Bytes of the next step's weights that are fetched while workgroups wait for each other.
_FETCHED = {"discrete": 8 << 20, "integrated": 1 << 20}


class PersistentProgram(Program):
    """`Program`, run as one dispatch of a kernel made of all its pipelines.

    Raises:
        NotCombined: the pipelines do not fit into one kernel, or its workgroups are not resident together.
    """

    def __init__(self, device: Device, steps: Sequence[Step], argument_bytes: int, units: int) -> None:
        super().__init__(device, steps, argument_bytes)
        sources = [step.pipeline.source.with_argument_block() for step in steps]
        kinds = list(dict.fromkeys(sources))
        self._kinds = [kinds.index(source) for source in sources]
        features = device.info.features
        if not (features.vulkan_memory_model and features.vulkan_memory_model_device_scope):
            raise NotCombined("the device has no memory model that orders what its workgroups hand each other")
        if driver_of(device.info).loses_invocations:
            raise NotCombined(f"{device.info.driver_info} loses invocations to loops inside of others")
        if stream_limit := device.stream.program_dispatches:
            raise NotCombined(f"a watchdog allows {stream_limit} dispatches at a time")
        try:
            self._pipeline = device.pipelines.get(combined(kinds))
        except NotCombined:
            raise
        except VulkanError as error:
            raise NotCombined(f"the kernel of {len(kinds)} does not compile: {str(error).splitlines()[0]}") from error
        at = (argument_bytes + _ALIGNMENT - 1) & -_ALIGNMENT
        self._fixed_at = []
        for step in steps:
            self._fixed_at.append(at)
            at = (at + len(step.pushed or b"") + _ALIGNMENT - 1) & -_ALIGNMENT
        self._table_at = at
        self._control_at = at + _STEP.size * len(steps)
        self._nbytes = self._control_at + CONTROL_BYTES
        self.failed_at = self._control_at + FAILED_AT
        self.failure = (
            f"a workgroup of the persistent kernel of {len(steps)} steps did not come to a barrier "
            "(options={'persistent': False} does without)"
        )
        self.groups = self._resident(units)
        self.dispatches, self.barriers = 1, 0

    def _resident(self, units: int) -> int:
        """The most workgroups, of those tried, that a trial shows to be resident together."""
        device = self._device
        if device.info.kind == "cpu":
            return 1  # its threads may run one workgroup after the other
        stream, pipeline = device.stream, self._pipeline
        table = 4 * _STEP.pack(0, 0, 0, 0, NO_KERNEL, 1, 0, 0)
        with stream.lock:
            arguments = stream.shared.arguments(CONTROL_BYTES + len(table))
        view = device.ffi.buffer(device.ffi.cast("char *", arguments.host), arguments.nbytes)
        address, place = arguments.address, ((arguments.address, arguments.nbytes),)
        args = pipeline.pack(address + CONTROL_BYTES, address, 4, _TRIAL_POLLS)
        try:
            for each in _PER_UNIT:
                view[0 : CONTROL_BYTES + len(table)] = bytes(CONTROL_BYTES) + table
                stream.dispatch(pipeline, (units * each, 1, 1), args, place, place)
                stream.synchronize()
                if struct.unpack_from("<I", view, FAILED_AT)[0] == 0:
                    return units * each
        finally:
            stream.shared.retired.append((stream.submissions.submitted, (), arguments))
        raise NotCombined(f"{units} workgroups are not resident together")

    def _record(self) -> Instance:
        device = self._device
        ffi, stream = device.ffi, device.stream
        stream.shared.collect(stream.submissions.completed())
        arguments = stream.shared.arguments(self._nbytes)
        view = ffi.buffer(ffi.cast("char *", arguments.host), arguments.nbytes)
        view[0 : self._nbytes] = bytes(self._nbytes)
        base = arguments.address - stream.bias
        for number, (step, kind, fixed_at) in enumerate(zip(self.steps, self._kinds, self._fixed_at, strict=True)):
            args_at, groups = step.args_at, step.groups
            if step.pushed is not None:
                args_at = fixed_at
                view[fixed_at : fixed_at + len(step.pushed)] = step.pushed
            count = 0 if groups is None else groups[0] * groups[1] * groups[2]
            waits = int(bool(self._masks[number]) and number > 0)
            at = self._table_at + number * _STEP.size
            groups_at = base + step.groups_at if groups is None else 0
            address, nbytes = step.constant
            fetched = min(nbytes, _FETCHED.get(device.info.kind, 0))
            start = (address - stream.bias) & -_SECTOR if fetched else 0
            entry = _STEP.pack(base + args_at, groups_at, start, count, kind, waits, fetched, 0)
            view[at : at + len(entry)] = entry
        counters.recordings += 1
        return Instance((self._encode_all(arguments),), arguments, view, begins=TO_COMPUTE_AND_TRANSFER)

    def _encode_all(self, arguments: Arguments) -> Any:
        device, pipeline = self._device, self._pipeline
        vk, barriers = device.vk, device.stream.barriers
        command = self.begin()
        # Its own words are cleared once all before has ended (the barrier for that stands before the program, see
        # `Recorder._run_program`), then it begins.
        offset = arguments.offset + self._control_at
        vk.vkCmdFillBuffer(command, arguments.block.buffer, offset, FAILED_AT, 0)
        barriers.record(command, ALL_SOURCES, TO_COMPUTE)
        self.bind(command, pipeline)
        address = arguments.address
        self.push(
            command,
            pipeline,
            pipeline.pack(address + self._table_at, address + self._control_at, len(self.steps), _POLLS),
        )
        vk.vkCmdDispatch(command, self.groups, 1, 1)
        check(vk.vkEndCommandBuffer(command), "vkEndCommandBuffer")
        return command
