"""Linear layers over blocks where x waits in shared memory, as floats or as bytes: which problems, which tiles.

With bytes (option ``int8_activations``) an element of x is a signed byte times a scale of its 32 neighbours; products
of a block are exact integers. docs/int8-activations.md has the bound of the error.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.utils import ceildiv

from vkinductor.device.fused_linear import DENSE
from vkinductor.device.quantized import format_of
from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import compat, heuristics
from ..alignment import begins_aligned, divides
from ..gemm.integer import has_dot_product
from ..template_kernel import VulkanTemplateKernel
from ..wide_loads import loads
from .gemv import QuantizedTile
from .problem import Problem, context_of
from .units import BLOCK, WEIGHTS, Unit, function, unit

# Rows of x that a workgroup has at once.
MOST_ROWS = 4
# Words of weights that an invocation has on their way before x is read.
_MOST_WORDS = 96
# Workgroups that fill a large GPU.
_GROUPS = 256
# Words of a unit of the lightest formats and of those in the middle; rows of at least so many weights, and so many rows
# at least: wide, and where floats are worth it.
_LIGHT, _MIDDLE, _LONG, _WIDE, _NARROW = 11, 12, 4096, 8192, 2048
# By whether x is bytes, and of the weights the shape and how heavy they are: threads, lanes, rows (of both of a gate),
# staged. Nothing: x is better read from memory. What an H200 did fastest with one row of halves, products one after the
# other: Q4_0, Q4_K (in the middle) and Q8_0, of 2048 to 32000 x 2048 and of 2048 x 5632.
_TILES: dict[bool, dict[tuple[str, int], tuple[int, int, int, bool]]] = {
    True: {
        ("wide", 0): (128, 32, 2, False),
        ("wide", 1): (128, 32, 4, False),
        ("wide", 2): (128, 32, 2, True),
        ("narrow", 0): (128, 32, 2, True),
        ("narrow", 1): (128, 32, 2, True),
        ("narrow", 2): (128, 32, 1, True),
        ("long", 0): (128, 32, 2, False),
        ("long", 1): (128, 32, 2, False),
        ("long", 2): (128, 32, 2, False),
    },
    False: {
        ("wide", 0): (128, 32, 4, False),
        ("wide", 1): (128, 32, 4, True),
        ("narrow", 0): (128, 32, 2, True),
        ("narrow", 1): (128, 32, 2, True),
        ("narrow", 2): (128, 32, 1, True),
    },
}
# Parts of blocks of x that it has on their way: of each 16 bytes where x is halves.
_MOST_TURNS = 16


@dataclass(frozen=True)
class StagedTile:
    """``threads`` a workgroup in teams of ``lanes``, each for ``rows`` rows of weights (of each of two with a gate).

    ``staged``: whether weights go through shared memory, else invocations load their own. ``bytes``: what x becomes.
    """

    threads: int
    lanes: int
    rows: int
    staged: bool
    bytes: bool

    def cluster(self, info: DeviceInfo) -> int:
        """How many neighbours add up by subgroup arithmetic; 1: none, and the tile is not to be had."""
        return QuantizedTile(self.threads, self.lanes, self.rows, 1).cluster(info)

    def shared_bytes(self, problem: Problem, tm: int, subgroup: int) -> int:
        """Shared memory of a workgroup for ``tm`` rows of x, of subgroups of at least that size."""
        slots = self.rows * (2 if problem.gate else 1)
        x = tm * problem.k * (1 if self.bytes else 4) + tm * problem.k // BLOCK * 8
        stage = 16 * stage_units(self.threads // self.lanes * slots * problem.pitches[1]) if self.staged else 0
        return x + stage + 4 * tm * self.threads // subgroup * (slots + 1)

    def fits(self, info: DeviceInfo, problem: Problem, tm: int) -> bool:
        """Whether the device has such workgroups."""
        limits, cluster = info.limits, self.cluster(info)
        invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        if cluster == 1 or self.lanes < cluster or self.threads > invocations or self.threads % self.lanes:
            return False
        smallest = min(cluster, limits.subgroup_size_min)
        return self.shared_bytes(problem, tm, smallest) <= limits.max_shared_memory


_forced: contextvars.ContextVar[StagedTile | None] = contextvars.ContextVar("vkinductor_staged_tile", default=None)


@contextlib.contextmanager
def forced(tile: StagedTile | None) -> Iterator[None]:
    """Every operator over blocks lowered inside that can takes ``tile``; None: what is chosen (for tests and
    measurements; graph caches do not know of it)."""
    token = _forced.set(tile)
    try:
        yield
    finally:
        _forced.reset(token)


def stage_units(nbytes: int) -> int:
    """16 bytes each, and a last one since words at every second byte are read as two."""
    return nbytes // 16 + 2


def wants_bytes() -> bool:
    """Whether activations become bytes where they meet blocks (option ``int8_activations``)."""
    return bool(compat.setting("int8_activations"))


def forced_tile() -> StagedTile | None:
    """The tile that is forced here, if any."""
    return _forced.get()


def serves(info: DeviceInfo, dtype: torch.dtype, problem: Problem, tm: int, tile: StagedTile) -> bool:
    """Whether this kernel computes ``problem`` with ``tile``, for ``tm`` rows of x of ``dtype`` at a time."""
    if not _is_of_units(info, dtype, problem) or not tile.fits(info, problem, tm):
        return False
    return tile.bytes or all(_unit(number).floats for number in problem.formats)


def plan_of(info: DeviceInfo, inputs: Sequence[Any], problem: Problem, tm: int, tile: StagedTile) -> Any:
    """The plan of a node with these operands in memory, for ``tm`` rows of x at a time, which ``tile`` serves."""
    while tm > 1 and tm * _turns(info, problem, tile) > _MOST_TURNS:
        tm //= 2
    known = _alignment(inputs, problem)
    if tile.staged and (len(set(problem.formats)) > 1 or _stage_bytes(problem, tile, known) < 4):
        tile = dataclasses.replace(tile, staged=False)
    return functools.partial(_plan, tile=tile, problem=problem, tm=tm, known=known)


def _share(info: DeviceInfo) -> int:
    """Invocations that share a block of x."""
    return 4 if info.features.subgroup_shuffle else 1


def _turns(info: DeviceInfo, problem: Problem, tile: StagedTile) -> int:
    """Parts of blocks of a row of x that an invocation has."""
    return -(-(problem.k * _share(info) // BLOCK) // tile.threads)


def _is_of_units(info: DeviceInfo, dtype: torch.dtype, problem: Problem) -> bool:
    """Whether weights have units, whole ones a row and row after row, and the norm is one that scales."""
    if any(number == DENSE or unit(number) is None for number in problem.formats):
        return False
    return (
        problem.k % WEIGHTS == 0
        and problem.norm in ("", "rms")
        and problem.shift is None
        and not (problem.gate and len(set(problem.formats)) > 1)
        and problem.lies_plain
        and info.features.subgroup_arithmetic
        and dtype in (torch.float32, torch.float16, torch.bfloat16)
    )


def _alignment(inputs: Sequence[Any], problem: Problem) -> int:
    """What the addresses of all weights are known to be a multiple of."""
    known = 16
    for i, number in enumerate(problem.formats):
        weight = inputs[1 + i]
        if not (begins_aligned(weight.get_name()) and divides(16, weight.get_layout().offset)):
            known = min(known, format_of(number).alignment)
    return known


def _stage_bytes(problem: Problem, tile: StagedTile, known: int) -> int:
    """Bytes of a load of weights that are staged: all of a workgroup's are such loads, and all of a weight's."""
    pitch, rows = problem.pitches[1], tile.threads // tile.lanes * tile.rows
    return math.gcd(known, pitch * rows, *(n * pitch for n in problem.sizes))


def tile_of(info: DeviceInfo, problem: Problem, tm: int, as_bytes: bool) -> StagedTile | None:
    """The tile for ``tm`` rows of x, which become bytes or not; None where the kernels that read x from memory are as
    quick, or weights have no units."""
    common = heuristics.program_workgroup(info)
    if any(number == DENSE or unit(number) is None for number in problem.formats):
        return None
    n = problem.sizes[0] * 2 if problem.gate else sum(problem.sizes)
    words = max(_unit(number).words for number in problem.formats)
    shape = "long" if problem.k >= _LONG else "wide" if n >= _WIDE else "narrow"
    if not as_bytes:
        few = tm > 1 or n < _NARROW or (shape == "narrow" and not problem.norm)
        if few or info.kind == "cpu" or common is not None:
            return None
    found = _TILES[as_bytes].get((shape, (words > _LIGHT) + (words > _MIDDLE)))
    if found is None:
        return None
    threads, lanes, rows, is_staged = found
    if common is not None:
        # All kernels of a program have their shared memory at once.
        threads, is_staged = common, False
    subgroup = info.limits.subgroup_size_min
    units = problem.k // WEIGHTS
    lanes = min(threads, max(subgroup, min(lanes, 1 << (units - 1).bit_length())))
    while rows > 1 and n < _GROUPS * rows * (threads // lanes):
        rows //= 2
    rows = max(1, rows // 2) if problem.gate else rows
    tiles = (StagedTile(threads, lanes, rows, is_staged, as_bytes), StagedTile(threads, lanes, rows, False, as_bytes))
    alone = (StagedTile(subgroup, subgroup, 1, False, True),) if as_bytes else ()
    return next((tile for tile in (*tiles, *alone) if tile.fits(info, problem, tm)), None)


def _kinds(problem: Problem, tile: StagedTile, known: int) -> list[dict[str, Any]]:
    """What the template knows of each format, with the numbers of the weights that have it."""
    kinds = []
    for number in dict.fromkeys(problem.formats):
        entry, found = format_of(number), _unit(number)
        pitch = entry.row_bytes(problem.k)
        # In shared memory a row begins at words.
        alignment = min(found.alignment, pitch & -pitch, 16 if tile.staged else known)
        kinds.append(
            {
                "numbers": [i for i, other in enumerate(problem.formats) if other == number],
                "pieces": found.pieces,
                "alignment": alignment,
                "type": {16: "uvec4", 8: "uvec2"}.get(alignment, "uint"),
                "blocks": found.blocks,
                "parts": found.parts,
                "offset": found.offset,
                "words": found.words,
                "function": function(entry, tile.bytes),
            }
        )
    return kinds


def _unit(number: int) -> Unit:
    found = unit(number)
    assert found is not None
    return found


def _plan(
    kernel: VulkanTemplateKernel, tile: StagedTile, problem: Problem, tm: int, known: int
) -> tuple[str, dict[str, Any], Any]:
    """The template's context for ``tm`` rows of x at a time, and the number of workgroups."""
    x, info = kernel.inputs[0], kernel.device_info
    gain = None if problem.gain is None else kernel.inputs[problem.gain]
    rows = kernel.node.get_size()[0]
    values, tiles = context_of(kernel, problem, tile, tm)
    teams, slots = tile.threads // tile.lanes, values["slots"]
    pitch, units = problem.pitches[1], problem.k // WEIGHTS
    passes, kinds = -(-units // tile.lanes), _kinds(problem, tile, known)
    most_words = max(kind["words"] for kind in kinds)
    nbytes = _stage_bytes(problem, tile, known) if tile.staged else 16
    share = _share(info)
    values |= {
        "units": units,
        "passes": passes,
        "ahead": 0 if tile.staged else passes if passes * slots * most_words <= _MOST_WORDS else 1,
        "gain_loads": None if gain is None else loads(gain),
        "x": loads(x),
        "share": share,
        "item": BLOCK // share,
        "items": problem.k * share // BLOCK,
        "turns": _turns(info, problem, tile),
        "bytes": tile.bytes,
        "dot": has_dot_product(info),
        "kinds": kinds,
        "offset": any(kind["offset"] for kind in kinds),
        "most_words": most_words,
        "staged": tile.staged,
        "pitch": pitch,
        "stage_units": stage_units(teams * slots * pitch),
        "stage_bytes": nbytes,
        "stage_type": {16: "uvec4", 8: "uvec2", 4: "uint"}[nbytes],
        "stage_loads": -(-teams * tile.rows * pitch // (nbytes * tile.threads)),
        "most_subgroups": tile.threads // info.limits.subgroup_size_min,
        "defines": [] if x.get_dtype() == torch.float32 else ["HALF_ACTIVATIONS"],
    }
    return "staged_linear.glsl.jinja", values, tiles * ceildiv(rows, tm)
