"""Products of few rows on CPU drivers: a lane a row of weights, x by broadcast (see gemm/broadcast.py for why).

Owns which bits of a block are which weight, for the formats whose blocks are of 32; others are dequantised as
everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch._inductor.utils import ceildiv

from vkinductor.runtime.deviceinfo import DeviceInfo

from ..template_kernel import VulkanTemplateKernel
from ..types import glsl_type
from .formats import UNIT, Packing
from .operands import address

# Rows of x and of weights that a lane multiplies: 16 sums stay in the registers of a processor, and what is written out
# for more takes seconds to compile.
_MOST_ROWS = 4
# Workgroups that several processors share well.
_GROUPS = 12


@dataclass(frozen=True)
class LanesTile:
    """A subgroup of ``lanes`` a workgroup, ``rows`` rows of weights a lane and ``tm`` of x."""

    lanes: int
    rows: int
    tm: int


def words_anywhere(info: DeviceInfo) -> list[str]:
    """What to define for the library to load words that are not aligned, where the device is a processor."""
    return ["WORDS_ANYWHERE"] if info.kind == "cpu" else []


def tile_of(info: DeviceInfo, m: int, n: int) -> LanesTile | None:
    """The tile for ``m`` rows of x and ``n`` of weights; None on devices that are not for it."""
    limits = info.limits
    lanes = limits.subgroup_size
    fixed = limits.subgroup_size_min == lanes == limits.subgroup_size_max
    features = info.features
    if info.kind != "cpu" or not fixed or not (features.subgroup_ballot and features.subgroup_arithmetic):
        return None
    if lanes < 4 or UNIT % lanes:
        return None
    rows = _MOST_ROWS
    while rows > 1 and n < _GROUPS * lanes * rows:
        rows //= 2
    return LanesTile(lanes, rows, min(m, _MOST_ROWS))


@dataclass(frozen=True)
class Fields:
    """A format by its words: ``loads`` declares those and the vec2 scale{r} of row {r}, for the template.

    ``places``: for each weight, the word, the lowest bit and the number of bits of its integer.
    """

    loads: tuple[str, ...]
    places: tuple[tuple[str, int, int], ...]


def _words(first: int, count: int, flip: str = "") -> list[str]:
    """Declarations of words q0 and on of a row, from byte ``first``: two by a load, since each load takes its time."""
    lines = []
    for w in range(0, count, 2):
        lines.append(f"const uvec2 p{w}_{{r}} = unpack32(Buffer_uint64_t(w{{r}} + {first + 4 * w}ul).d[0]){flip};")
        lines += [f"const uint q{w + i}_{{r}} = p{w}_{{r}}.{axis};" for i, axis in enumerate("xy")]
    return lines


def _scale(scale: str) -> list[str]:
    return ["const vec2 head{r} = unpackHalf2x16(Buffer_uint(w{r}).d[0]);", f"const vec2 scale{{r}} = {scale};"]


def _halves(first: int, scale: str) -> Fields:
    """Four words of pairs 16 apart, from byte ``first``."""
    places = [(f"q{w}_{{r}}", 8 * b + half, 4) for half in (0, 4) for w in range(4) for b in range(4)]
    return Fields((*_words(first, 4), *_scale(scale)), tuple(places))


def _bytes() -> Fields:
    places = [(f"q{w}_{{r}}", 8 * b, 8) for w in range(8) for b in range(4)]
    loads = (*_words(2, 8, " ^ 0x80808080u"), *_scale("vec2(head{r}.x, -128.0 * head{r}.x)"))
    return Fields(loads, tuple(places))


# Blocks may begin at any 2 bytes: processors load words from there.
_FIELDS = {
    "Q4_0": _halves(2, "vec2(head{r}.x, -8.0 * head{r}.x)"),
    "Q4_1": _halves(4, "head{r}"),
    "Q8_0": _bytes(),
}


def _factors(exponents: list[int]) -> str:
    """GLSL of a power of two a lane."""
    if len(set(exponents)) == 1:
        return f"{2.0 ** exponents[0]!r}"
    return f"float[]({', '.join(f'{2.0**e!r}' for e in exponents)})[lane]"


def fields(entry: Packing, lanes: int) -> dict[str, Any]:
    """What the template knows of a format: GLSL of integers, and the factors of x that they take."""
    found = _FIELDS.get(entry.format.name)
    if found is None:
        return {"fields": [], "loads": [], "factors": [], "dequantize": entry.dequantize, "nbytes": 0}
    made, factors = [], []
    for k, (word, shift, bits) in enumerate(found.places):
        # The highest bits would make a negative integer.
        high = shift + bits == 32
        made.append(
            (k, f"float(int({word} >> {shift}))" if high else f"float(int({word} & {((1 << bits) - 1) << shift}u))")
        )
        factors.append(0 if high else -shift)
    return {
        "fields": made,
        "loads": found.loads,
        "factors": [_factors(factors[i : i + lanes]) for i in range(0, UNIT, lanes)],
        "dequantize": "",
        "nbytes": entry.format.nbytes,
    }


def plan(kernel: VulkanTemplateKernel, tile: LanesTile, entry: Packing) -> tuple[str, dict[str, Any], Any]:
    """The template, its context, and the number of workgroups."""
    rows, k = kernel.inputs[0].get_size()
    n = kernel.inputs[1].get_size()[0]
    x = glsl_type(kernel.inputs[0].get_dtype())
    (x_address, x_stride), (w_address, w_stride) = address(kernel, 0), address(kernel, 1)
    values = {
        "lanes": tile.lanes,
        "rows": tile.rows,
        "tm": tile.tm,
        "m": kernel.size(rows),
        "n": kernel.size(n),
        "k": kernel.size(k),
        "x_address": x_address,
        "x_stride": x_stride,
        "x_bytes": x.nbytes,
        "x_load": x.load.format(f"{x.buffer}({{address}}).d[0]"),
        "w_address": w_address,
        "w_stride": w_stride,
        "subgroup_size": tile.lanes,
        "defines": words_anywhere(kernel.device_info),
        **fields(entry, tile.lanes),
    }
    return "gemv_quantized_lanes.glsl.jinja", values, ceildiv(rows, tile.tm) * ceildiv(n, tile.lanes * tile.rows)
