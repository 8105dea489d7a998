"""A program without barriers between its dispatches: each waits itself for those that it depends on.

A barrier lets nothing of the next dispatch begin before all of the last one has ended, its invocations are created and
its arguments read only then, and memory is idle meanwhile. Here all dispatches are handed out at once. Workgroups count
when they have ended, one word for the whole program, and those of a step that depends on others wait until the word
says that these are through: by then they are resident, and what they read that nobody writes is on its way.

That needs workgroups of a later dispatch not to take the place of earlier ones that have yet to begin. Vulkan does not
promise it; GPUs hand out dispatches of a queue in order. A trial shows it, once for a device, no wait is longer than a
number of polls, and one that was given up is an error.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vkinductor.runtime.abi import EXTENSIONS, ArgumentLayout
from vkinductor.runtime.errors import ProgramFailedError, VulkanError, check
from vkinductor.runtime.pipeline import KernelSource
from vkinductor.runtime.replay.combine import handed_on
from vkinductor.runtime.replay.program import Instance, Program, Step
from vkinductor.runtime.stats import counters

if TYPE_CHECKING:
    from vkinductor.runtime.device import Device
    from vkinductor.runtime.deviceinfo import DeviceInfo

# Beside a kernel's own arguments: where workgroups are counted, what is fetched meanwhile (a number of ranges, then
# address and bytes of each; 0: nothing), how many have to be through before, and, in those that can be the last ones,
# how many there are in all.
_CHAIN = struct.Struct("<QQII")
_CHAIN_FIELDS = (("control", "ptr"), ("fetched", "ptr"), ("expected", "u32"), ("total", "u32"))
_RANGE = struct.Struct("<QQ")
_HEAD = struct.Struct("<Q")
_ALIGNMENT = 16
# The counter has a line of caches for itself.
_CONTROL_BYTES = 256
# In the counter: a wait was given up. No other one waits then.
FAILED = 1 << 31
# Polls before that: about a second on a GPU.
_POLLS = 1 << 21
# Bytes of a step's read-only memory that are fetched while it waits.
_FETCHED = {"discrete": 8 << 20, "integrated": 1 << 20}
_SECTOR = 32
# Invocations from this number on fetch; the subgroup of the first one polls.
_FETCHERS = 64

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
    """Whether a program of ``steps`` is chained where nothing else is asked for: many short dispatches, on a driver
    of which it is known that this is right and faster (NVIDIA's own)."""
    if info.kind != "discrete" or info.vendor_id != _NVIDIA or len(steps) < FEWEST_STEPS:
        return False
    return sum(map(_workgroups, steps)) <= MOST_GROUPS * units * len(steps)


_NVIDIA = 0x10DE


class ChainedProgram(Program):
    """`Program` with kernels that wait for each other instead of barriers.

    Raises:
        NotChained: a step's workgroups are counted on the device, a watchdog cuts programs, the device has no memory
            model for it, or it does not begin dispatches in order.
    """

    def __init__(self, device: Device, steps: Sequence[Step], argument_bytes: int, units: int) -> None:
        super().__init__(device, steps, argument_bytes)
        features = device.info.features
        if not (features.vulkan_memory_model and features.vulkan_memory_model_device_scope):
            raise NotChained("the device has no memory model that orders what workgroups of two dispatches hand on")
        if limit := device.stream.program_dispatches:
            raise NotChained(f"a watchdog allows {limit} dispatches at a time")
        if any(step.groups is None for step in steps):
            raise NotChained("a number of workgroups varies")
        ends = list(itertools.accumulate(map(_workgroups, steps)))
        self._total = ends[-1]
        if self._total >= FAILED:
            raise NotChained(f"{self._total} workgroups are more than one word counts")
        if device.info.kind != "cpu" and not _begins_in_order(device, units):
            raise NotChained("the device does not begin dispatches in order")
        self._expected = []
        before = 0
        for number, mask in enumerate(self._masks):
            if mask and number:
                before = ends[number - 1]
            self._expected.append(before)
        self._pipelines = []
        at = (argument_bytes + _ALIGNMENT - 1) & -_ALIGNMENT
        self._fixed_at: list[int | None] = []  # of arguments that do not fit into push constants any more
        self._fetched_at: list[int] = []
        most = device.info.limits.max_push_constants
        self._ranges = [[] if step.early else _fetched(step, _FETCHED.get(device.info.kind, 0)) for step in steps]
        for step, ranges in zip(steps, self._ranges, strict=True):
            source, fixed_at = step.pipeline.source, None
            if step.pushed is not None and _CHAIN.size + len(step.pushed) > most:
                source, fixed_at = source.with_argument_block(), at
                at = (at + len(step.pushed) + _ALIGNMENT - 1) & -_ALIGNMENT
            self._fixed_at.append(fixed_at)
            self._fetched_at.append(at)
            if ranges:
                at = (at + _HEAD.size + _RANGE.size * len(ranges) + _ALIGNMENT - 1) & -_ALIGNMENT
            try:
                self._pipelines.append(device.pipelines.get(chained(source, step.early)))
            except NotChained:
                raise
            except VulkanError as error:
                raise NotChained(f"{source.name} does not compile: {str(error).splitlines()[0]}") from error
        self._control_at = (at + _CONTROL_BYTES - 1) & -_CONTROL_BYTES
        self.barriers = 0

    def instance(self, bound: Any, addresses: tuple[int, ...]) -> Instance:
        made = super().instance(bound, addresses)
        view, at = made.view, self._control_at
        if made.value <= self._device.stream.submissions.completed() and struct.unpack_from("<I", view, at)[0]:
            view[at : at + 4] = bytes(4)
            raise ProgramFailedError(
                f"a dispatch of a program of {len(self.steps)} waited in vain for those before it: results of the last "
                "call are not complete. Use options={'chained': False}"
            )
        return made

    def _record(self) -> Instance:
        device = self._device
        ffi, shared = device.ffi, device.stream.shared
        shared.collect(device.stream.submissions.completed())
        arguments = shared.arguments(self._control_at + _CONTROL_BYTES)
        view = ffi.buffer(ffi.cast("char *", arguments.host), arguments.nbytes)
        view[0 : len(view)] = bytes(len(view))
        base = arguments.address - device.stream.bias
        last = max(number for number, expected in enumerate(self._expected) if expected == self._expected[-1])
        first_of_last = self._expected.index(self._expected[last])
        command = self.begin()
        for number, step in enumerate(self.steps):
            pushed, fixed_at, fetched_at = step.pushed, self._fixed_at[number], self._fetched_at[number]
            if fixed_at is not None and pushed is not None:
                view[fixed_at : fixed_at + len(pushed)] = pushed
                pushed = struct.pack("<Q", base + fixed_at)
            elif pushed is None:
                pushed = struct.pack("<Q", base + step.args_at)
            if ranges := self._ranges[number]:
                packed = _HEAD.pack(len(ranges)) + b"".join(
                    _RANGE.pack(address - device.stream.bias & -_SECTOR, nbytes) for address, nbytes in ranges
                )
                view[fetched_at : fetched_at + len(packed)] = packed
            pipeline = self._pipelines[number]
            total = self._total if number >= first_of_last else 0
            chain = _CHAIN.pack(
                base + self._control_at, base + fetched_at if ranges else 0, self._expected[number], total
            )
            self.bind(command, pipeline)
            self.push(command, pipeline, chain + pushed)
            assert step.groups is not None
            device.vk.vkCmdDispatch(command, *step.groups)
        check(device.vk.vkEndCommandBuffer(command), "vkEndCommandBuffer")
        counters.recordings += 1
        return Instance((command,), arguments, view)


def _workgroups(step: Step) -> int:
    x, y, z = step.groups or (0, 0, 0)
    return x * y * z


def _fetched(step: Step, most: int) -> list[tuple[int, int]]:
    """The ranges that ``step`` fetches while it waits, ``most`` bytes of them in all."""
    ranges = []
    for address, nbytes in step.constants:
        if most and nbytes:
            ranges.append((address, min(nbytes, most)))
            most -= ranges[-1][1]
    return ranges


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

_STRUCT = """struct VkChain { uint64_t control; uint64_t fetched; uint expected; uint total; };
bool vk_chain_waited = false;
void vk_chain_wait();
"""

_MAIN_TEXT = """
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer VkChainControl { nonprivate uint arrived; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer VkChainRanges { uint64_t d[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer VkChainWords { uint d[]; };

// Bring ranges of memory into the device's cache, each workgroup its part.
void vk_chain_fetch(const uint first, const uint count) {
    const uint group = gl_WorkGroupID.x + gl_NumWorkGroups.x * (gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z);
    const uint groups = gl_NumWorkGroups.x * gl_NumWorkGroups.y * gl_NumWorkGroups.z;
    VkChainRanges ranges = VkChainRanges(vk_chain.fetched);
    uint seen = 0u;
    for (uint range = 0u; range < uint(ranges.d[0]); ++range) {
        const uint64_t address = ranges.d[2u * range + 1u];
        const uint bytes = uint(ranges.d[2u * range + 2u]);
        // A word of each sector of 32 bytes is enough.
        for (uint at = 32u * (group * count + gl_LocalInvocationIndex - first); at < bytes; at += 32u * count * groups) {
            seen |= VkChainWords(address + uint64_t(at)).d[0] ^ 1u;
        }
    }
    // Never: without a use there would be no load.
    if (seen == 0u && vk_chain.total == 0xffffffffu) {
        atomicOr(VkChainControl(vk_chain.control).arrived, 1u);
    }
}

void vk_chain_wait() {
    VkChainControl control = VkChainControl(vk_chain.control);
    vk_chain_waited = true;
    if (vk_chain.expected != 0u) {
        const uint invocations = gl_WorkGroupSize.x * gl_WorkGroupSize.y * gl_WorkGroupSize.z;
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
        if (invocations > FETCHERSu && gl_LocalInvocationIndex >= FETCHERSu && vk_chain.fetched != 0ul) {
            vk_chain_fetch(FETCHERSu, invocations - FETCHERSu);
        }
        barrier();
    }
}

void main() {
BEFORE    vk_body();
    // Whoever had nothing to do counts no sooner than others.
    if (!vk_chain_waited) {
        vk_chain_wait();
    }
    VkChainControl control = VkChainControl(vk_chain.control);
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease | gl_SemanticsMakeAvailable);
    barrier();
    if (gl_LocalInvocationIndex == 0u) {
        if (vk_chain.total == 0u) {
            atomicAdd(control.arrived, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
        } else if (atomicAdd(control.arrived, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed) + 1u ==
                   vk_chain.total) {
            // The last one of all: the next run counts anew.
            atomicStore(control.arrived, 0u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
        }
    }
}
""".replace("POLLSu", f"{_POLLS}u").replace("FAILEDu", f"{FAILED}u").replace("FETCHERSu", f"{_FETCHERS}u")
