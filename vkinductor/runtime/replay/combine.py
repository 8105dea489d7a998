"""Several compute shaders as one that runs their workgroups in order: the text of a persistent kernel.

Owns the translation: each shader's ``main`` becomes a function, its global names get a suffix of their own, workgroup
numbers become variables, and one loop walks a table of steps, with a barrier of all workgroups of the grid between
those that depend on each other. When and where that runs is `persistent`'s business.

The grid barrier holds only while every workgroup is resident: none is ever waited for longer than a number of polls
that the caller gives; then all leave, and a word in memory says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vkinductor.runtime.abi import ArgumentLayout
from vkinductor.runtime.errors import VulkanError
from vkinductor.runtime.pipeline import KernelSource

# Arguments of a persistent kernel: the table of steps, the words that workgroups meet at, and their numbers.
LAYOUT = ArgumentLayout((("table", "ptr"), ("control", "ptr"), ("steps", "u32"), ("polls", "u32")))

# A step in the table: 64-bit address of its arguments, 64-bit address of three workgroup counts (0: `groups` says how
# many), 64-bit address of what nothing writes and the step reads, workgroups, the number of its kernel, whether it
# waits for those before it, how many bytes of the read-only memory are fetched meanwhile.
STEP_FORMAT = "<QQQIIIIQ"
# Words at `control`: workgroups that have arrived in all, whether one gave up.
CONTROL_BYTES = 64
FAILED_AT = 32

# Invocations from this number on fetch what the next step reads; the subgroup of the first one polls.
_FETCHERS = 64

# The number of no kernel: a step that only waits.
NO_KERNEL = 0xFFFFFFFF

_LOCAL_SIZE = re.compile(r"^layout\(local_size_x = (\d+)\) in;$", re.M)
_EXTENSION = re.compile(r"^#extension (\w+) : require$", re.M)
_MODES = re.compile(r"^spirv_execution_mode\(.*\);$", re.M)
_BUFFER = re.compile(r"^layout\(buffer_reference[^)]*\) buffer Buffer_\w+ \{.*\};$", re.M)
# What workgroups hand each other: only memory that is not private to an invocation obeys the fences at a meeting.
# The qualifier has to be each member's: on a block glslang takes it and does nothing (seen in its SPIR-V).
_SHARED = re.compile(r"^(layout\(buffer_reference[^)]*\) (?:readonly |writeonly )?buffer \w+ \{)([^}]*)\}", re.M)
_MEMBER = re.compile(r"(?<=;)\s*(?=\w)|^\s*(?=\w)")
_DEFINE = re.compile(r"^\s*#define (\w+)", re.M)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_NAMES = (
    re.compile(r"\bstruct\s+(\w+)\s*$"),
    re.compile(r"\bbuffer\s+(\w+)\s*$"),
    re.compile(r"\b(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*$"),
    re.compile(r"\b(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", re.S),
)
# What only shaders that may run at any workgroup size do without.
_BOUND = re.compile(r"\bbarrier\(|\bshared\b|\bsubgroup\w+|\bgl_Subgroup\w+|\bgl_NumSubgroups\b|\bcoopmat\b")


class NotCombined(VulkanError):
    """The shaders cannot be one; the message says why."""


def local_size(source: KernelSource) -> int:
    """Invocations of a workgroup of ``source``. Raises NotCombined unless they lie along x."""
    found = _LOCAL_SIZE.search(source.glsl)
    if found is None:
        raise NotCombined(f"{source.name} has no workgroup along x")
    return int(found[1])


def is_free(source: KernelSource) -> bool:
    """Whether its invocations do not know each other, so that any workgroup can run them."""
    return _BOUND.search(source.glsl) is None


def common_size(sources: Sequence[KernelSource]) -> int:
    """The workgroup size of a kernel of all ``sources``.

    Raises:
        NotCombined: those whose invocations work together have different sizes, or need other subgroups.
    """
    bound = {local_size(s): s.name for s in sources if not is_free(s)}
    if len(bound) > 1:
        named = ", ".join(f"{size} ({name})" for size, name in sorted(bound.items()))
        raise NotCombined(f"workgroups of different sizes: {named}")
    if len(_subgroups(sources)) > 1:
        raise NotCombined("kernels for different subgroup sizes")
    if any(s.specialization for s in sources):
        raise NotCombined("kernels with specialization constants")
    return next(iter(bound)) if bound else max(map(local_size, sources))


def _subgroups(sources: Sequence[KernelSource]) -> set[int]:
    """The subgroup sizes that some of ``sources`` need; the others take any."""
    return {s.subgroup_size for s in sources if s.subgroup_size is not None and not is_free(s)}


def combined(sources: Sequence[KernelSource]) -> KernelSource:
    """One kernel whose steps name ``sources`` by position; all must read their arguments from a block.

    Raises:
        NotCombined: see `common_size`.
    """
    size = common_size(sources)
    extensions: dict[str, None] = {"GL_EXT_buffer_reference": None, "GL_KHR_memory_scope_semantics": None}
    modes: dict[str, None] = {}
    buffers: dict[str, None] = {}
    bodies = []
    for number, source in enumerate(sources):
        text = source.glsl
        extensions.update(dict.fromkeys(_EXTENSION.findall(text)))
        modes.update(dict.fromkeys(_MODES.findall(text)))
        buffers.update(dict.fromkeys(_BUFFER.findall(text)))
        bodies.append(handed_on(_function(source, number, size)))
    cases = "".join(
        f"        case {number}u:\n"
        + (f"            vk_args_block_k{number} = VkArgsBlock_k{number}(step.args);\n" if source.layout.fields else "")
        + f"            main_k{number}();\n            break;\n"
        for number, source in enumerate(sources)
    )
    parts = [
        "#version 460",
        *(f"#extension {name} : require" for name in extensions),
        "#pragma use_vulkan_memory_model",
        *modes,
        LAYOUT.glsl(inline=True),
        *map(handed_on, buffers),
        f"layout(local_size_x = {size}) in;",
        "uvec3 vk_group_id, vk_group_count, vk_local_id;",
        *bodies,
        _MAIN.replace("CASES", cases).replace("FETCHERS", f"{_FETCHERS if size > _FETCHERS else 0}u"),
    ]
    return KernelSource(
        f"persistent_{sources[0].name}",
        "\n".join(parts),
        LAYOUT,
        subgroup_size=next(iter(_subgroups(sources)), None),
        full_subgroups=any(s.full_subgroups for s in sources),
    )


def handed_on(text: str) -> str:
    """GLSL ``text`` with buffers that are not private to an invocation, so that they obey fences."""

    def marked(match: re.Match[str]) -> str:
        members = match[2] if "nonprivate" in match[2] else _MEMBER.sub(" nonprivate ", match[2])
        return f"{match[1]}{members}}}"

    return _SHARED.sub(marked, text)


def _function(source: KernelSource, number: int, size: int) -> str:
    """``source`` as a function ``main_kNUMBER`` and what it needs, under names of its own."""
    text = source.glsl
    fields = source.layout.fields
    if fields:
        declared = source.layout.glsl(inline=False)
        if source.inline_args or text.count(declared) != 1:
            raise NotCombined(f"{source.name} does not read its arguments from a block")
        pushed = "layout(push_constant, scalar) uniform VkArgs { VkArgsBlock vk_args_block; };\n"
        text = text.replace(declared, declared.replace(pushed, "VkArgsBlock vk_args_block;\n"))
    for pattern in (re.compile(r"^#version.*$", re.M), _EXTENSION, _MODES, _BUFFER, _LOCAL_SIZE):
        text = pattern.sub("", text)
    names = {*_declared(text), *_DEFINE.findall(text)}
    suffixed = re.compile(r"\b(" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + r")\b")
    text = suffixed.sub(lambda match: f"{match[0]}_k{number}", text)
    own = local_size(source)
    text = re.sub(r"\bgl_WorkGroupID\b", "vk_group_id", text)
    text = re.sub(r"\bgl_NumWorkGroups\b", "vk_group_count", text)
    text = re.sub(r"\bgl_WorkGroupSize\b", f"uvec3({own}, 1, 1)", text)
    text = re.sub(r"\bgl_GlobalInvocationID\b", f"(vk_group_id * uvec3({own}, 1, 1) + vk_local_id)", text)
    text = re.sub(r"\bgl_LocalInvocationIndex\b", "vk_local_id.x", text)
    text = re.sub(r"\bgl_LocalInvocationID\b", "vk_local_id", text)
    if own == size:
        return text
    # Its invocations are dealt to those there are, in turns.
    main = re.compile(rf"\bvoid main_k{number}\(")
    text = main.sub(f"void turn_k{number}(", text)
    return text + (
        f"\nvoid main_k{number}() {{\n"
        f"    for (uint local = gl_LocalInvocationID.x; local < {own}u; local += {size}u) {{\n"
        f"        vk_local_id = uvec3(local, 0u, 0u);\n        turn_k{number}();\n    }}\n"
        "    vk_local_id = gl_LocalInvocationID;\n}\n"
    )


def _declared(text: str) -> Iterator[str]:
    """Names that ``text`` declares globally."""
    plain = _COMMENT.sub("", text)
    plain = "\n".join(line for line in plain.split("\n") if not line.lstrip().startswith("#"))
    for head in _heads(plain):
        for pattern in _NAMES:
            found = pattern.search(head)
            if found:
                yield found[1]
                break
        if head.lstrip().startswith(("shared", "const")) and "=" not in head:
            # shared float a[4], b[4];
            yield from re.findall(r",\s*(\w+)\s*(?=[\[,;]|$)", re.sub(r"\[[^\]]*\]", "", head))


def _heads(text: str) -> Iterator[str]:
    """What stands before each block or semicolon at depth 0."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        if letter == "{":
            if depth == 0:
                yield text[begin:at].strip()
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                begin = at + 1
        elif letter == ";" and depth == 0:
            head = text[begin:at].strip()
            begin = at + 1
            if head:
                yield head


_MAIN = """
struct VkStep {
    uint64_t args;
    uint64_t groups_at;
    uint64_t fetched;
    uint groups;
    uint kernel;
    uint waits;
    uint fetched_bytes;
    uint64_t unused;
};
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer VkSteps { VkStep d[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer VkCounts { uint d[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer VkControl {
    uint arrived;
    uint unused[7];
    uint failed;
};
shared uint vk_gave_up;

// Bring `bytes` from `address` on into the device's cache, each workgroup its part: memory is idle while they wait.
void vk_fetch(const uint64_t address, const uint bytes) {
    const uint first = FETCHERS, others = gl_WorkGroupSize.x - first;
    uint seen = 0u;
    // A word of each sector of 32 bytes is enough.
    for (uint at = 32u * (gl_WorkGroupID.x * others + gl_LocalInvocationID.x - first); at < bytes;
         at += 32u * others * gl_NumWorkGroups.x) {
        seen |= VkCounts(address + uint64_t(at)).d[0] ^ 1u;
    }
    // Never: without a use there would be no load.
    if (seen == 0u && ARG.polls == 0u) {
        atomicOr(VkControl(ARG.control).failed, 1u);
    }
}

// All workgroups of the grid meet. false: one of them did not come in time.
bool vk_meet(const uint meetings, const uint64_t fetched, const uint bytes) {
    VkControl control = VkControl(ARG.control);
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease | gl_SemanticsMakeAvailable);
    barrier();
    if (gl_LocalInvocationID.x == 0u) {
        atomicAdd(control.arrived, 1u, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
        uint polls = 0u;
        while (atomicLoad(control.arrived, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed) <
               meetings * gl_NumWorkGroups.x && polls < ARG.polls) {
            ++polls;
        }
        if (polls >= ARG.polls) {
            atomicOr(control.failed, 1u);
        }
        // One invocation empties the cache of all that share it.
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
        vk_gave_up = uint(polls >= ARG.polls);
    }
    if (gl_LocalInvocationID.x >= FETCHERS) {
        vk_fetch(fetched, bytes);
    }
    barrier();
    return vk_gave_up == 0u;
}

void main() {
    vk_local_id = gl_LocalInvocationID;
    VkSteps table = VkSteps(ARG.table);
    uint meetings = 0u;
    VkStep step = table.d[0];
    for (uint at = 0u; at < ARG.steps; ++at) {
        // The next step is on its way while this one runs.
        const VkStep next = table.d[min(at + 1u, ARG.steps - 1u)];
        uint groups = step.groups;
        if (step.groups_at != 0ul) {
            VkCounts counts = VkCounts(step.groups_at);
            groups = counts.d[0] * counts.d[1] * counts.d[2];
        }
        if (step.waits != 0u && !vk_meet(++meetings, step.fetched, step.fetched_bytes)) {
            return;
        }
        vk_group_count = uvec3(groups, 1u, 1u);
        for (uint group = gl_WorkGroupID.x; group < groups; group += gl_NumWorkGroups.x) {
            vk_group_id = uvec3(group, 0u, 0u);
            switch (step.kernel) {
CASES
            default:
                break;
            }
            barrier();
        }
        step = next;
    }
}
"""
