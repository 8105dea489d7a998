"""Strided copies, conversions and fills on the device: from operands to dispatches of
`templates/copy.glsl.jinja`.

Owns the choice of kernel and its arguments. What is copied where, and what goes through host memory, is
`copies`' decision.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vkinductor.device import strides
from vkinductor.device.dtypes import DTYPES

if TYPE_CHECKING:
    from vkinductor.device.storage import TorchDevice
    from vkinductor.runtime.pipeline import KernelSource, Pipeline

WORKGROUP = 256
_MAX_PLANS = 4096
_LIBRARY = re.compile(r"\bvk_\w+")

MAX_RANK = 6  # 3 numbers a dimension and two addresses stay within the guaranteed 128 bytes of push constants

_EXTENSIONS = (
    "GL_EXT_buffer_reference",
    "GL_EXT_scalar_block_layout",
    "GL_EXT_shader_explicit_arithmetic_types_int64",
    "GL_EXT_shader_explicit_arithmetic_types_int32",
    "GL_EXT_shader_explicit_arithmetic_types_int16",
    "GL_EXT_shader_explicit_arithmetic_types_int8",
    "GL_EXT_shader_16bit_storage",
    "GL_EXT_shader_8bit_storage",
)

# Moves that do not look at the value: bytes -> (GLSL type, the element made of ARG.value0..3).
_UNITS: dict[int, tuple[str, str]] = {
    1: ("uint8_t", "uint8_t(ARG.value0)"),
    2: ("uint16_t", "uint16_t(ARG.value0)"),
    4: ("uint", "ARG.value0"),
    8: ("uvec2", "uvec2(ARG.value0, ARG.value1)"),
    16: ("uvec4", "uvec4(ARG.value0, ARG.value1, ARG.value2, ARG.value3)"),
}

# dtype -> GLSL that makes the register value of a loaded element; the rest are constructors.
_LOAD: dict[torch.dtype, str] = {
    torch.float16: "vk_f16_bits_to_f32({})",
    torch.bfloat16: "vk_bf16_to_f32({})",
    torch.bool: "({} != uint8_t(0))",
}

# dtype -> GLSL that makes the element in memory of a register value; the rest are constructors.
_STORE: dict[torch.dtype, str] = {
    torch.float16: "uint16_t(vk_f32_to_f16_bits({}))",
    torch.bfloat16: "uint16_t(vk_f32_to_bf16_bits({}))",
    torch.bool: "uint8_t({} ? 1 : 0)",
}

# Register type -> GLSL of "is not zero". NaN is not.
_TRUTH: dict[str, str] = {
    "float": "((floatBitsToUint({}) & 0x7fffffffu) != 0u)",
    "double": "({} != 0.0LF)",
    "int": "({} != 0)",
    "uint": "({} != 0u)",
    "int64_t": "({} != int64_t(0))",
    "uint64_t": "({} != uint64_t(0))",
}


@dataclass(frozen=True)
class Operand:
    """Strided memory: address of the first element, strides in elements, dtype; negate reads (or stores) the
    negative."""

    address: int
    stride: tuple[int, ...]
    dtype: torch.dtype
    negate: bool = False

    def part(self, which: int) -> Operand:
        """The real (0) or imaginary (1) parts of a complex operand, not negated."""
        component = DTYPES[self.dtype].component
        assert component is not None
        doubled = tuple(2 * s for s in self.stride)
        return Operand(self.address + which * component.itemsize, doubled, component)


def convertible(device: TorchDevice, *dtypes: torch.dtype) -> bool:
    """Whether the device can compute with these dtypes (it can move any)."""
    for dtype in dtypes:
        entry = DTYPES[dtype]
        if entry.storage is None or (entry.register == "double" and not device.runtime.info.features.float64):
            return False
    return True


@dataclass(frozen=True)
class _Step:
    """One dispatch of a planned copy; offsets and lengths in bytes."""

    pipeline: Pipeline
    groups: tuple[int, int, int]
    numbers: tuple[int, ...]  # the arguments after the two addresses
    dst_offset: int
    src_offset: int
    dst_nbytes: int
    src_nbytes: int


def copy(device: TorchDevice, size: tuple[int, ...], dst: Operand, src: Operand) -> None:
    """dst[i] = src[i] for every index of `size`, converted to dst's dtype. The two must not overlap; size has no 0.

    Conversion is torch's: to floating point it rounds to nearest even, to integers towards zero.
    """
    both = dst.address | src.address
    key = (size, dst.stride, src.stride, dst.dtype, src.dtype, dst.negate != src.negate, both & 15)
    plan = device.copy_plans.get(key)
    if plan is None:
        if len(device.copy_plans) >= _MAX_PLANS:  # changing shapes make new ones for ever
            device.copy_plans.clear()
        plan = device.copy_plans[key] = _plan(device, size, dst, src)
    if isinstance(plan, int):
        device.stream.copy(dst.address, src.address, plan)
        return
    for step in plan:
        to, at = dst.address + step.dst_offset, src.address + step.src_offset
        device.stream.dispatch(
            step.pipeline,
            step.groups,
            step.pipeline.pack(to, at, *step.numbers),
            ((at, step.src_nbytes),),
            ((to, step.dst_nbytes),),
            step.src_nbytes + step.dst_nbytes,
        )


def _plan(device: TorchDevice, size: tuple[int, ...], dst: Operand, src: Operand) -> int | tuple[_Step, ...]:
    """How to copy: the number of bytes when that is all there is to it, or dispatches."""
    itemsize = dst.dtype.itemsize
    walk = strides.merge(size, dst.stride, src.stride)
    negate = dst.negate != src.negate
    if dst.dtype == src.dtype and not negate:
        if walk.dst == walk.src == (1,):
            return walk.count * itemsize
        walk, unit = strides.widen(walk, itemsize, _alignment(dst.address | src.address))
        key: tuple[object, ...] = ("move", unit)
        dst_unit = src_unit = unit
    else:
        key = ("convert", dst.dtype, src.dtype, negate)
        dst_unit, src_unit = itemsize, src.dtype.itemsize
    return tuple(
        _Step(
            _pipeline(device, (*key, len(piece.size))),
            _groups(device, piece.count),
            (piece.count, *piece.size, *piece.dst, *piece.src),
            dst_at * dst_unit,
            src_at * src_unit,
            strides.extent(piece.size, piece.dst) * dst_unit,
            strides.extent(piece.size, piece.src) * src_unit,
        )
        for piece, dst_at, src_at in strides.split(walk, MAX_RANK)
    )


def fill(device: TorchDevice, size: tuple[int, ...], dst: Operand, pattern: bytes) -> None:
    """dst[i] = the element whose bytes are `pattern`, for every index of `size`; size has no 0."""
    unit = len(pattern)
    walk = strides.merge(size, dst.stride, dst.stride)
    nbytes = walk.count * unit
    word = (pattern * 4)[:4]
    uniform = pattern == (word * 4)[:unit]
    if walk.dst == (1,) and uniform:
        device.stream.fill(dst.address, nbytes, int.from_bytes(word, "little"), 4)
        return
    walk, wide = strides.widen(walk, unit, _alignment(dst.address))
    values = (pattern * (wide // unit)).ljust(16, b"\0")
    words = tuple(int.from_bytes(values[i : i + 4], "little") for i in range(0, 16, 4))
    for piece, dst_at, _ in strides.split(walk, MAX_RANK):
        pipeline = _pipeline(device, ("fill", wide, len(piece.size)))
        to = dst.address + dst_at * wide
        nbytes = strides.extent(piece.size, piece.dst) * wide
        args = pipeline.pack(to, *words, piece.count, *piece.size, *piece.dst)
        device.stream.dispatch(pipeline, _groups(device, piece.count), args, (), ((to, nbytes),), nbytes)


def _alignment(address: int) -> int:
    return (address & -address) or 16


def _groups(device: TorchDevice, count: int) -> tuple[int, int, int]:
    from vkinductor.runtime import grid

    return grid.fold(-(-count // WORKGROUP), device.runtime.info.limits)


def _pipeline(device: TorchDevice, key: tuple[object, ...]) -> Pipeline:
    """The kernel for ("move", unit, rank), ("fill", unit, rank) or ("convert", dst dtype, src dtype, negate,
    rank)."""
    pipeline = device.kernels.get(key)
    if pipeline is None:
        pipeline = device.kernels[key] = device.runtime.pipelines.get(_source(key))
    return pipeline


def _source(key: tuple[object, ...]) -> KernelSource:
    from vkinductor import templates
    from vkinductor.runtime import abi, grid, pipeline

    kind, *what, rank = key
    assert isinstance(rank, int)
    constant = kind == "fill"
    functions: tuple[str, ...] = ()
    if kind == "convert":
        dst_dtype, src_dtype, negate = what
        assert isinstance(dst_dtype, torch.dtype)
        assert isinstance(src_dtype, torch.dtype)
        dst_type, src_type = str(DTYPES[dst_dtype].storage), str(DTYPES[src_dtype].storage)
        dst_align, src_align = dst_dtype.itemsize, src_dtype.itemsize
        value, functions = _conversion(dst_dtype, src_dtype, bool(negate))
        name = f"copy_{_short(dst_dtype)}_{_short(src_dtype)}{'_neg' if negate else ''}_{rank}d"
    else:
        (unit,) = what
        assert isinstance(unit, int)
        dst_type, filled = _UNITS[unit]
        src_type = dst_type
        dst_align = src_align = unit
        value = filled if constant else "x"
        name = f"{'fill' if constant else 'copy'}_{unit}b_{rank}d"
    dims = range(rank)
    fields = [("dst", "ptr")]
    fields += [(f"value{i}", "u32") for i in range(4)] if constant else [("src", "ptr")]
    fields += [("count", "u32"), *((f"size{d}", "u32") for d in dims), *((f"dst{d}", "u32") for d in dims)]
    if not constant:
        fields += [(f"src{d}", "u32") for d in dims]
    layout = abi.ArgumentLayout(tuple(fields))
    glsl = templates.render(
        "copy.glsl.jinja",
        extensions=_EXTENSIONS,
        workgroup=WORKGROUP,
        arguments=layout.glsl(True),
        functions=templates.library(functions),
        linear_group_id=grid.LINEAR_GROUP_ID,
        rank=rank,
        constant=constant,
        dst_type=dst_type,
        src_type=src_type,
        dst_align=dst_align,
        src_align=src_align,
        value=value,
    )
    return pipeline.KernelSource(name, glsl, layout)


def _short(dtype: torch.dtype) -> str:
    return DTYPES[dtype].short


def _conversion(dst: torch.dtype, src: torch.dtype, negate: bool) -> tuple[str, tuple[str, ...]]:
    """(GLSL expression of the loaded element `x`, library functions) that converts src to dst."""
    source, target = str(DTYPES[src].register), str(DTYPES[dst].register)
    value = _LOAD.get(src, _constructor(source, DTYPES[src].storage)).format("x")
    if negate:
        value = f"(-{value})"
    if source != target:
        if target == "bool":
            value = _TRUTH[source].format(value)
        elif source in ("float", "double") and target not in ("float", "double"):
            value = f"vk_{'f32' if source == 'float' else 'f64'}_to_{_short(dst)}({value})"
        elif (source, target) == ("double", "float"):
            value = f"vk_f64_to_f32({value})"  # to the 16-bit types as well: torch rounds twice, and so do we
        else:
            value = f"{target}({value})"
    value = _STORE.get(dst, _constructor(str(DTYPES[dst].storage), target)).format(value)
    return value, tuple(sorted(set(_LIBRARY.findall(value))))


def _constructor(to: str, of: str | None) -> str:
    return "{}" if to == of else f"{to}({{}})"
