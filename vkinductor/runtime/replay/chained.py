"""A program whose dispatches wait for each other themselves, without barriers between them.

A barrier lets nothing of the next dispatch begin before all of the last one has ended: only then are its workgroups
created and its arguments read, and memory is idle meanwhile. Here all are handed out at once. Workgroups count when
they have ended, one word for the whole program, and those of a step that depends on others wait until the word says
that these are through: by then they are resident, and what they read that nobody writes is in their registers. A step
of SmolLM2-135M, 153 dispatches, takes 430 us instead of 608 (H200).

That needs workgroups of a later dispatch not to take the place of earlier ones that have yet to begin. Vulkan does not
promise it; GPUs hand out the dispatches of a queue in order. A trial shows it, once for a device; no wait is longer
than a number of polls, and one that was given up is an error.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.barriers import TO_COMPUTE
from vkinductor.runtime.drivers import driver_of
from vkinductor.runtime.errors import VulkanError, check
from vkinductor.runtime.hazards import AFTER_PROGRAM
from vkinductor.runtime.pipeline import KernelSource
from vkinductor.runtime.replay.combine import handed_on
from vkinductor.runtime.replay.program import Instance, Program, Step
from vkinductor.runtime.stats import counters

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.deviceinfo import DeviceInfo
    from vkinductor.runtime.pipeline import Pipeline

# Before a kernel's own arguments: where workgroups are counted, how many have to be through before, whether its own are
# counted, and, in those that can be the last ones, how many there are in all.
_CHAIN = struct.Struct("<QIIIxxxx")
_CHAIN_FIELDS = (("control", "ptr"), ("expected", "u32"), ("counted", "u32"), ("total", "u32"), ("unused", "u32"))
_ADDRESS = struct.Struct("<Q")
_ALIGNMENT = 16
# The counter has a line of caches for itself.
_CONTROL_BYTES = 256
# In the counter: a wait was given up. No other one waits then.
FAILED = 1 << 31
# Polls before that: about a second on a GPU.
_POLLS = 1 << 21
# Bytes that a step reads from which on it waits at a barrier, unless it has so few workgroups for each compute unit
# that all are resident: each of many would ask and count. llama-1.1B, a workgroup for each two or four rows of weights:
# 912 us with barriers, 1436 with all chained, 900 with attention and its linear layer (8 MB) alone; workgroups that
# take such tiles in turns, two a unit: 792 with all (H200).
MOST_BYTES, RESIDENT = 10_000_000, 4

# Where it is the default: steps, and workgroups of one for each compute unit. Where dispatches are long, or few, what
# lies between them does not matter.
FEWEST_STEPS, MOST_GROUPS = 8, 16

# Read by the preprocessor of kernels that run by themselves; a line of its own.
_READY = re.compile(r"^[ \t]*READY_AFTER\(.*\)$", re.M)
_NAME = re.compile(r"\w+")
_MAIN = re.compile(r"\bvoid main\(")
_PUSHED = re.compile(r"^layout\(push_constant, scalar\) uniform VkArgs \{ ", re.M)
_ARGS = re.compile(r"^struct Args \{", re.M)
_VERSION = re.compile(r"^#version.*$", re.M)
_LOCAL = re.compile(r"^layout\(local_size_x", re.M)


class NotChained(VulkanError):
    """The steps cannot wait for each other; the message says why."""


def read_early(source: KernelSource) -> frozenset[str]:
    """The arguments whose memory ``source`` reads before it reads anything else, as its text says (see ready.jinja)."""
    names = {name for line in _READY.findall(source.glsl) for name in _NAME.findall(line)}
    return frozenset(names & {name for name, _ in source.layout.fields})


def chained(source: KernelSource, early: bool = False) -> KernelSource:
    """``source`` with a wait and a count at its end. Its push constants begin with those of `_CHAIN`. early: it waits
    where it says that what it has read was not for others to write; otherwise at its beginning.

    Raises:
        NotChained: the text does not declare its arguments and ``main`` in the usual way.
    """
    text, fields = source.glsl, source.layout.fields
    if len(_MAIN.findall(text)) != 1 or len(_LOCAL.findall(text)) != 1:
        raise NotChained(f"{source.name} has no main of its own")
    if fields:
        if text.count(source.layout.glsl(source.inline_args)) != 1:
            raise NotChained(f"{source.name} does not declare its arguments as its layout does")
        text = _PUSHED.sub(lambda match: match[0] + "VkChain vk_chain; ", text)
        text = _ARGS.sub(lambda match: _STRUCT + match[0], text)
    else:
        declared = _STRUCT + "layout(push_constant, scalar) uniform VkArgs { VkChain vk_chain; };\n"
        text = _LOCAL.sub(lambda match: declared + match[0], text)
    early = early and _READY.search(text) is not None
    if early:
        text = _READY.sub("vk_chain_wait();", text)
    text = handed_on(_MAIN.sub("void vk_body(", text))
    needed = (*EXTENSIONS, "GL_KHR_memory_scope_semantics")
    head = [f"#extension {name} : require" for name in needed if f"#extension {name} " not in text]
    head += ["#pragma use_vulkan_memory_model", *(["#define VK_CHAINED"] if early else [])]
    glsl = _VERSION.sub(lambda match: "\n".join([match[0], *head]), text, count=1)
    glsl += _MAIN_TEXT.replace("BEFORE", "" if early else "    vk_chain_wait();\n")
    own = fields if source.inline_args else (("arguments", "ptr"),) if fields else ()
    return dataclasses.replace(
        source,
        name=f"chained_{source.name}",
        glsl=glsl,
        layout=ArgumentLayout((*_CHAIN_FIELDS, *((f"own_{name}", kind) for name, kind in own))),
        inline_args=True,
    )


def pays(info: DeviceInfo, steps: Sequence[Step], units: int) -> bool:
    """Whether a program of ``steps`` is chained where nothing else is asked for: many short dispatches on a device of
    which it is known that this is right and faster."""
    many = len(steps) >= FEWEST_STEPS
    return by_default(info) and many and sum(map(_workgroups, steps)) <= MOST_GROUPS * units * len(steps)


def by_default(info: DeviceInfo) -> bool:
    """Whether programs of short dispatches are chained on a device: on cards, where that was measured."""
    return info.kind == "discrete" and driver_of(info).chains


# How a step waits for those before it.
AT_BARRIER, AT_BEGINNING, WHERE_READY = range(3)


def manner(step: Step, units: int) -> int:
    """How ``step`` waits where it has to, on a device of so many compute units."""
    if step.groups is None:
        return AT_BARRIER
    resident = step.early and _workgroups(step) <= RESIDENT * units
    if sum(nbytes for _, nbytes in step.reads) > MOST_BYTES and not resident:
        return AT_BARRIER
    return WHERE_READY if step.early else AT_BEGINNING


@dataclass
class _Place:
    """A step in its chain. expected: workgroups that have to be through before it; counted: its own are counted; total:
    in those that can be the last ones, how many there are in all."""

    manner: int
    expected: int = 0
    counted: bool = False
    total: int = 0

    @property
    def chained(self) -> bool:
        return self.counted or self.expected > 0


def places(steps: Sequence[Step], masks: Sequence[int], units: int = 1) -> list[_Place]:
    """The chain of ``steps``: those with a mask wait for all before them. Between two barriers each step counts that
    another one waits for, and each that waits. What has its workgroups counted on the device (a size that varies) lies
    between two barriers."""
    chain = []
    unknown = False
    for number, (step, mask) in enumerate(zip(steps, masks, strict=True)):
        how = manner(step, units) if mask and number and not unknown else AT_BARRIER
        chain.append(_Place(how))
        unknown = step.groups is None or (unknown and not mask)
    waits = [place.manner != AT_BARRIER for place in chain]
    begin = 0
    for number in range(len(steps) + 1):
        if number == len(steps) or (masks[number] and not waits[number]):
            last = max((n for n in range(begin, number) if waits[n]), default=-1)
            for n in range(begin, number):
                # Behind the last one that waits, those with no mask wait as it does.
                chain[n].counted = last >= 0 and (n <= last or not masks[n])
            begin = number
    count = before = 0
    for number, place in enumerate(chain):
        if masks[number]:
            before = count if waits[number] else 0
        place.expected = before
        count += _workgroups(steps[number]) if place.counted else 0
    last = max((n for n in range(len(steps)) if waits[n]), default=len(steps))
    for place in chain[last:]:
        place.total = count if place.counted else 0
    return chain


class ChainedProgram(Program):
    """`Program` with kernels that wait for each other instead of barriers, but for those that read much.

    Raises:
        NotChained: a watchdog cuts programs, the device has no memory model for it, or it does not begin dispatches in
            order.
    """

    def __init__(self, device: Device, steps: Sequence[Step], argument_bytes: int, units: int) -> None:
        super().__init__(device, steps, argument_bytes)
        features = device.info.features
        if not (features.vulkan_memory_model and features.vulkan_memory_model_device_scope):
            raise NotChained("the device has no memory model that orders what workgroups of two dispatches hand on")
        if limit := device.stream.program_dispatches:
            raise NotChained(f"a watchdog allows {limit} dispatches at a time")
        if sum(map(_workgroups, steps)) >= FAILED:
            raise NotChained("there are more workgroups than one word counts")
        if device.info.kind != "cpu" and not _begins_in_order(device, units):
            raise NotChained("the device does not begin dispatches in order")
        # Dispatches of which it is not known how many workgroups they have wait, whatever they read.
        self._masks = [AFTER_PROGRAM if s.groups is None else m for s, m in zip(steps, self._masks, strict=True)]
        self._places = places(steps, self._masks, units)
        self._pipelines: list[Pipeline] = []
        at = (argument_bytes + _ALIGNMENT - 1) & -_ALIGNMENT
        self._fixed_at: list[int | None] = []  # of arguments that do not fit into push constants any more
        most = device.info.limits.max_push_constants
        for step, place in zip(steps, self._places, strict=True):
            source, fixed_at = step.pipeline.source, None
            if place.chained:
                if step.pushed is not None and _CHAIN.size + len(step.pushed) > most:
                    source, fixed_at = source.with_argument_block(), at
                    at = (at + len(step.pushed) + _ALIGNMENT - 1) & -_ALIGNMENT
                source = chained(source, place.manner == WHERE_READY)
            self._fixed_at.append(fixed_at)
            try:
                self._pipelines.append(device.pipelines.get(source))
            except VulkanError as error:
                raise NotChained(f"{source.name} does not compile: {str(error).splitlines()[0]}") from error
        self._control_at = self.failed_at = (at + _CONTROL_BYTES - 1) & -_CONTROL_BYTES
        self.failure = (
            f"a dispatch of a program of {len(steps)} waited in vain for those before it "
            "(options={'chained': False} keeps barriers)"
        )
        at_barrier = [
            mask and place.manner == AT_BARRIER for mask, place in zip(self._masks, self._places, strict=True)
        ]
        self.barriers = sum(map(bool, at_barrier[1:]))

    def _record(self) -> Instance:
        device = self._device
        ffi, stream = device.ffi, device.stream
        stream.shared.collect(stream.submissions.completed())
        arguments = stream.shared.arguments(self._control_at + _CONTROL_BYTES)
        view = ffi.buffer(ffi.cast("char *", arguments.host), arguments.nbytes)
        view[0 : len(view)] = bytes(len(view))
        base = arguments.address - stream.bias
        command, bound = self.begin(), None
        for number, (step, place) in enumerate(zip(self.steps, self._places, strict=True)):
            pushed, fixed_at, pipeline = step.pushed, self._fixed_at[number], self._pipelines[number]
            if fixed_at is not None and pushed is not None:
                view[fixed_at : fixed_at + len(pushed)] = pushed
                pushed = _ADDRESS.pack(base + fixed_at)
            elif pushed is None:
                pushed = _ADDRESS.pack(base + step.args_at)
            if place.chained:
                pushed = _CHAIN.pack(base + self._control_at, place.expected, place.counted, place.total) + pushed
            if number and self._masks[number] and place.manner == AT_BARRIER:
                # What lies before it needs no other one.
                stream.barriers.record(command, AFTER_PROGRAM, TO_COMPUTE)
            if pipeline is not bound:
                self.bind(command, pipeline)
                bound = pipeline
            if pushed:
                self.push(command, pipeline, pushed)
            if step.groups is not None:
                device.vk.vkCmdDispatch(command, *step.groups)
            else:
                device.vk.vkCmdDispatchIndirect(command, arguments.block.buffer, arguments.offset + step.groups_at)
        check(device.vk.vkEndCommandBuffer(command), "vkEndCommandBuffer")
        counters.recordings += 1
        return Instance((command,), arguments, view)


def _workgroups(step: Step) -> int:
    x, y, z = step.groups or (0, 0, 0)
    return x * y * z


_in_order: weakref.WeakKeyDictionary[Device, bool] = weakref.WeakKeyDictionary()

# Workgroups for each compute unit and invocations of the trial's dispatches: more than are resident at a time.
_TRIAL = ((64, 256), (1, 1024), (64, 64), (8, 1024))


def _begins_in_order(device: Device, units: int) -> bool:
    """Whether dispatches that wait for those before them end, as a trial shows."""
    known = _in_order.get(device)
    if known is not None:
        return known
    _in_order[device] = True  # for the trial itself
    most = min(device.info.limits.max_workgroup_invocations, device.info.limits.max_workgroup_size[0])
    steps = []
    for groups, local in _TRIAL:
        source = KernelSource(f"trial_{local}", _TRIAL_TEXT.format(local=min(local, most)), ArgumentLayout(()))
        pipeline = device.pipelines.get(source)
        steps.append(Step(pipeline, b"", 0, (units * groups, 1, 1), 0, ((0, 4),), ((0, 4),)))
    stream = device.stream
    with stream.lock:
        program = ChainedProgram(device, steps, 0, units)
        instance = program.instance(None, ())
        stream.replay(instance, "trial", program.dispatches, 0)
        stream.synchronize()
        _in_order[device] = not struct.unpack_from("<I", instance.view, program._control_at)[0]
        program.retire()
    return _in_order[device]


_TRIAL_TEXT = """#version 460
layout(local_size_x = {local}) in;
shared uint seen[{local}];
void main() {{
    seen[gl_LocalInvocationIndex] = gl_WorkGroupID.x;
    barrier();
    seen[gl_LocalInvocationIndex] += seen[{local} - 1 - gl_LocalInvocationIndex];
}}
"""

_STRUCT = """struct VkChain { uint64_t control; uint expected; uint counted; uint total; uint unused; };
bool vk_chain_waited = false;
void vk_chain_wait();
"""

_MAIN_TEXT = """
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer VkChainControl { nonprivate uint arrived; };

void vk_chain_wait() {
    VkChainControl control = VkChainControl(vk_chain.control);
    vk_chain_waited = true;
    if (vk_chain.expected != 0u) {
        if (gl_LocalInvocationIndex == 0u) {
            uint polls = 0u;
            while (atomicLoad(control.arrived, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed) <
                   vk_chain.expected && polls < POLLSu) {
                ++polls;
            }
            if (polls >= POLLSu) {
                atomicOr(control.arrived, FAILEDu, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
            }
            // One invocation empties the cache of all that share it.
            memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer,
                       gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    }
}

void main() {
BEFORE    vk_body();
    // Whoever had nothing to do counts no sooner than others.
    if (!vk_chain_waited) {
        vk_chain_wait();
    }
    VkChainControl control = VkChainControl(vk_chain.control);
    if (vk_chain.counted == 0u) {
        return;
    }
    // What the workgroup has written is written for all before one of it says so.
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (gl_LocalInvocationIndex == 0u) {
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease | gl_SemanticsMakeAvailable);
        if (vk_chain.total == 0u) {
            atomicAdd(control.arrived, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
        } else if (atomicAdd(control.arrived, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed) + 1u ==
                   vk_chain.total) {
            // The last one of all: the next run counts anew.
            atomicStore(control.arrived, 0u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
        }
    }
}
""".replace("POLLSu", f"{_POLLS}u").replace("FAILEDu", f"{FAILED}u")
