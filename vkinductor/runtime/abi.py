"""The kernel ABI: how the arguments of a dispatch are laid out, declared in GLSL and packed into bytes.

There are no descriptor sets. Arguments are one scalar-layout struct, either in the push constants or, when
that is too small, in an argument block whose address is the only push constant. Where the block lives is the
stream's business.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkinductor.runtime.deviceinfo import Limits

# kind: (GLSL type, struct format, bytes). A pointer is a device address.
KINDS: dict[str, tuple[str, str, int]] = {
    "ptr": ("uint64_t", "Q", 8),
    "i64": ("int64_t", "q", 8),
    "u64": ("uint64_t", "Q", 8),
    "f64": ("double", "d", 8),
    "i32": ("int", "i", 4),
    "u32": ("uint", "I", 4),
    "f32": ("float", "f", 4),
}

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

# Keywords of GLSL (reserved ones too) that would make likely argument names.
_KEYWORD_TEXT = """
in out inout input output buffer shared uniform const volatile coherent readonly writeonly restrict precise
layout sample centroid flat smooth patch attribute varying invariant subroutine struct void bool int uint
float double half fixed active filter common partition union enum class template this packed resource goto
switch case default break continue do for while if else discard return true false inline noinline public
static extern external interface long short unsigned superp lowp mediump highp precision sizeof cast
namespace using main
"""
_KEYWORDS = frozenset(_KEYWORD_TEXT.split())

# What a shader that uses `ArgumentLayout.glsl` has to enable; scalar layout keeps the struct free of padding.
EXTENSIONS = (
    "GL_EXT_scalar_block_layout",
    "GL_EXT_buffer_reference",
    "GL_EXT_shader_explicit_arithmetic_types_int64",
)


@dataclass(frozen=True)
class ArgumentLayout:
    """Named arguments in declared order: `fields` is ((name, kind), ...) with a kind of `KINDS`.

    In memory the 8-byte fields come first, then the 4-byte ones, each group in declared order: every field is
    aligned to its size and there is no padding.

    Raises:
        ValueError: an unknown kind, a name that is no GLSL identifier, or a name given twice.
    """

    fields: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name, kind in self.fields:
            if kind not in KINDS:
                raise ValueError(f"argument {name!r} has kind {kind!r}: choose one of {', '.join(KINDS)}")
            if not _IDENTIFIER.fullmatch(name) or name in _KEYWORDS or name in seen:
                raise ValueError(f"argument name {name!r} is repeated, a GLSL keyword or no identifier")
            seen.add(name)

    @cached_property
    def storage_order(self) -> tuple[int, ...]:
        """Indices into `fields` in memory order."""
        return tuple(sorted(range(len(self.fields)), key=lambda i: -KINDS[self.fields[i][1]][2]))

    @cached_property
    def nbytes(self) -> int:
        """Size of the packed arguments in bytes."""
        return sum(KINDS[kind][2] for _, kind in self.fields)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each argument, by name."""
        offsets, at = {}, 0
        for i in self.storage_order:
            name, kind = self.fields[i]
            offsets[name] = at
            at += KINDS[kind][2]
        return offsets

    def inline(self, limits: Limits) -> bool:
        """Whether the arguments fit the device's push constants."""
        return self.nbytes <= limits.max_push_constants

    def glsl(self, inline: bool) -> str:
        """GLSL that declares the arguments; shader code reads them as `ARG.name`. Needs `EXTENSIONS`.

        inline: the push constants are the struct. Otherwise they hold one reference to a 16-byte aligned
        block. An empty layout declares nothing.
        """
        if not self.fields:
            return ""
        members = "".join(
            f"    {KINDS[kind][0]} {name};\n" for name, kind in map(self.fields.__getitem__, self.storage_order)
        )
        args = f"struct Args {{\n{members}}};\n"
        if inline:
            return args + "layout(push_constant, scalar) uniform VkArgs { Args vk_args; };\n#define ARG vk_args\n"
        return args + (
            "layout(buffer_reference, scalar, buffer_reference_align = 16) "
            "readonly buffer VkArgsBlock { Args args; };\n"
            "layout(push_constant, scalar) uniform VkArgs { VkArgsBlock vk_args_block; };\n"
            "#define ARG vk_args_block.args\n"
        )

    def unpack(self, data: bytes) -> tuple[Any, ...]:
        """The values in declared order behind packed arguments (pointers as they were packed)."""
        values = dict(zip(self.storage_order, self._struct.unpack(data), strict=True))
        return tuple(values[i] for i in range(len(self.fields)))

    @cached_property
    def _struct(self) -> struct.Struct:
        return struct.Struct("<" + "".join(KINDS[self.fields[i][1]][1] for i in self.storage_order))

    def packer(self, bias: int = 0) -> Callable[..., bytes]:
        """A function of the values in declared order that returns the packed bytes.

        bias: subtracted from every non-null pointer (poison mode hands out biased addresses, see `memory`).
        Integers out of range raise `struct.error`; floats too large for an "f32" raise `OverflowError`.
        """
        layout = self._struct
        in_order = self.storage_order == tuple(range(len(self.fields)))
        if in_order and not (bias and any(kind == "ptr" for _, kind in self.fields)):
            return layout.pack
        # A generated lambda is twice as fast as indexing an argument tuple: this runs once a dispatch.
        names = [f"a{i}" for i in range(len(self.fields))]

        def value(i: int) -> str:
            return f"(a{i} and a{i} - {bias})" if bias and self.fields[i][1] == "ptr" else f"a{i}"

        source = f"lambda {', '.join(names)}: pack({', '.join(map(value, self.storage_order))})"
        return eval(source, {"pack": layout.pack})  # built from integers alone
