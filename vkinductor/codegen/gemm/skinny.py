"""Products with one to sixteen rows (GEMV, skinny GEMM): bound by reading the weights, once, at full bandwidth.

The operand with fewer rows is x, the other the weights: of ``a @ b`` with fewer columns than rows, a is.
Weights contiguous in k, as of nn.Linear, are read along k by teams of lanes whose sums meet by subgroup arithmetic;
weights contiguous in n along n. Bias and whatever follows fuse into the stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor.utils import ceildiv

from vkinductor.runtime.deviceinfo import DeviceInfo

from .. import heuristics, loop_limit
from ..template_kernel import VulkanTemplateKernel
from ..types import glsl_type, literal
from ..vectors import converted, elements, load_type, narrowest, words_of
from .integer import has_dot_product
from .problem import MOST_ROWS, Problem
from .tiles import Tile

# What an invocation keeps in registers: sums, and 32-bit words of weights on their way.
_MOST_SUMS = 64
_MOST_WORDS = 128
# Loads of weights so few that reading them takes less than waiting for them: 4 MB where a load has 16 bytes.
_FEW_CHUNKS = 1 << 18
# Of a row whose loads are all on their way at once.
_MOST_LOADS = 12
# Of weights that are read by workgroups which wait for others, 67 MB: what takes longer than that needs no such care.
MOST_CHUNKS = 1 << 22


@dataclass(frozen=True)
class Skinny:
    """A product as x [m, k] times weights [n, k]. ``swapped``: x is its second operand.

    ``columns``: weights are contiguous in n, not k. ``width``: elements a load of weights; ``x_width``: of x, along k.
    """

    swapped: bool
    m: int
    n: int
    k: int
    dtype: torch.dtype
    columns: bool
    width: int
    x_width: int
    weights: torch.dtype

    @property
    def register(self) -> str:
        """GLSL type of a sum."""
        half = self.dtype in (torch.float16, torch.bfloat16)
        return glsl_type(torch.float32 if half else self.dtype).register


def skinny(problem: Problem) -> Skinny:
    """``problem`` seen this way."""
    swapped = problem.n < problem.m
    m, n = (problem.n, problem.m) if swapped else (problem.m, problem.n)
    if not problem.static:
        m = 1 << (m - 1).bit_length()
    a, b = (problem.a_contiguous, problem.a_width), (problem.b_contiguous, problem.b_width)
    (x, x_width), (w, width) = (b, a) if swapped else (a, b)
    columns = w not in ("k", "")
    weights = problem.weights or problem.dtype
    width, x_width = narrowest(weights, width), x_width if x == "k" else 1
    if columns:
        # Every column of a load has sums for all rows.
        while width > 1 and width * m > _MOST_SUMS:
            width = narrowest(weights, width // 2)
    else:
        x_width = min(x_width, width)
    return Skinny(swapped, m, n, problem.k, problem.dtype, columns, width, narrowest(problem.dtype, x_width), weights)


@dataclass(frozen=True)
class SkinnyTile(Tile):
    """``threads`` a workgroup, each with ``loads`` loads of weights in flight for each row or column of them."""

    threads: int
    lanes: int
    rows: int
    loads: int

    def workgroup(self, info: DeviceInfo) -> int:
        return self.threads

    def k_lanes(self) -> int:
        """Invocations that split k."""
        raise NotImplementedError

    def outputs(self, view: Skinny) -> int:
        """Results of a row that a workgroup computes."""
        raise NotImplementedError

    def cluster(self, info: DeviceInfo, view: Skinny) -> int:
        """How many neighbours add up by subgroup arithmetic; 1: all through shared memory."""
        return 1

    def loop_width(self, view: Skinny) -> int:
        """Steps of k that one load takes."""
        raise NotImplementedError

    def x_width(self, view: Skinny) -> int:
        """Elements of a load of x."""
        return view.x_width


@dataclass(frozen=True)
class GemvTile(SkinnyTile):
    """Along k: teams of ``lanes`` split it, each for ``rows`` rows of weights.

    For products that wait for latency, not bytes: ``flat``: loads of a pass stand before all that waits for one, behind
    no branch; ``own``: so do those of the epilogue; ``direct``: sums of a subgroup meet in no shared memory.
    """

    flat: bool = False
    own: bool = False
    direct: bool = False
    turns: int = 0  # workgroups at most, each of which takes rows in turns; 0: as many as there are tiles

    template = "gemv.glsl.jinja"

    def k_lanes(self) -> int:
        return self.lanes

    def outputs(self, view: Skinny) -> int:
        return self.rows * (self.threads // self.lanes)

    def loop_width(self, view: Skinny) -> int:
        return view.width

    def cluster(self, info: DeviceInfo, view: Skinny) -> int:
        limits, features = info.limits, info.features
        lanes = min(self.lanes, limits.subgroup_size_min)
        clustered = features.subgroup_clustered or lanes == limits.subgroup_size_max
        plain = view.register in ("float", "int", "uint")
        full = self.threads % limits.subgroup_size_max == 0
        return lanes if features.subgroup_arithmetic and clustered and plain and full else 1

    def shared(self, info: DeviceInfo, view: Skinny) -> int:
        """Sums that a workgroup keeps in shared memory."""
        teams, sums, together = self.threads // self.lanes, self.rows * view.m, self.cluster(info, view)
        if together > 1:
            return teams * (self.lanes // together) * sums
        return teams * sums + (self.threads if self.lanes > 1 else 0)

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        view = skinny(problem)
        words = -(-view.width * view.weights.itemsize // 4)
        return (
            view.m <= MOST_ROWS
            and not view.columns
            and self.holds(info, 0)
            and self.shared(info, view) * problem.accumulator_bytes <= info.limits.max_shared_memory
            and self.rows * view.m <= _MOST_SUMS
            and self.rows * self.loads * words <= _MOST_WORDS
            and loop_limit.reach(info, self.lanes * self.loads * view.width, 1, 1) >= view.k
        )


@dataclass(frozen=True)
class GemvColumnsTile(SkinnyTile):
    """Along n: ``lanes`` lie along it, the other factor of ``threads`` splits k.

    The sums of ``rows`` rows of x pass through shared memory at a time.
    """

    template = "gemv_columns.glsl.jinja"

    def k_lanes(self) -> int:
        return self.threads // self.lanes

    def outputs(self, view: Skinny) -> int:
        return self.lanes * view.width

    def loop_width(self, view: Skinny) -> int:
        return 1

    def x_width(self, view: Skinny) -> int:
        return narrowest(view.dtype, min(view.x_width, self.loads))

    def fits(self, info: DeviceInfo, problem: Problem) -> bool:
        view = skinny(problem)
        words = -(-view.width * view.weights.itemsize // 4)
        return (
            view.m <= MOST_ROWS
            and view.columns
            and self.holds(info, 0)
            and self.rows * self.threads * view.width * problem.accumulator_bytes <= info.limits.max_shared_memory
            and view.width * view.m <= _MOST_SUMS
            and self.loads * words <= _MOST_WORDS
            and loop_limit.reach(info, self.k_lanes() * self.loads, 1, 1) >= view.k
        )


# (threads, lanes) x (rows, loads).
CANDIDATES: tuple[SkinnyTile, ...] = (
    *(
        GemvTile(threads, lanes, rows, loads)
        for threads, lanes in ((64, 64), (128, 128), (256, 256), (32, 32), (128, 32), (128, 16), (128, 8))
        for rows, loads in ((4, 4), (4, 2), (2, 4), (2, 8), (8, 2), (4, 1), (2, 2), (1, 8), (1, 4))
    ),
    *(
        GemvColumnsTile(threads, lanes, 1, loads)
        for threads, lanes in ((256, 8), (256, 4), (128, 8), (128, 4), (512, 8), (256, 16), (256, 32))
        for loads in (8, 4)
    ),
)


def candidates(info: DeviceInfo, problem: Problem) -> list[Tile]:
    """Tiles for a product with few rows or columns, the likely best first; none where other kinds are to be asked."""
    if min(problem.m, problem.n) > MOST_ROWS:
        return []
    view = skinny(problem)
    best = _columns(problem, view) if view.columns else _rows(info, problem, view)
    return [best, *(tile for tile in CANDIDATES if tile != best and tile.fits(info, problem))]


def _power_of_two_at_most(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def _rows(info: DeviceInfo, problem: Problem, view: Skinny) -> GemvTile:
    # What an H200 did fastest at 2048 to 14336 inputs (docs/benchmarks-nvidia.md): few rows want many lanes and two
    # loads each on their way, more of them fewer lanes, since each keeps sums of every row.
    chunks = -(-view.k // view.width)
    rows, loads, most = (4, 2, 64) if view.m < 4 else (2, 2, 32) if view.m <= 8 else (4, 1, 32)
    if view.m > 8 and view.width <= 4:
        rows = 2
    lanes = min(most, max(8, _power_of_two_at_most(-(-chunks // loads))))
    # One row against many: in a decode step, where each product waits for the one before, four teams a workgroup took
    # 11.3 instead of 13.1 us for 2048 x 5632, 7.1 instead of 8.0 for 2048 x 2048 (H200).
    many = view.m < 4 and info.kind != "cpu" and problem.batch * view.n >= 2048
    threads = heuristics.program_workgroup(info) or max(256 if many else 64 if view.m < 4 else 128, lanes)
    # Few outputs: more workgroups.
    while rows > 1 and problem.batch * view.n < 512 * rows * (threads // lanes):
        rows //= 2
    if view.m == 1 and info.kind != "cpu":
        own = GemvTile(threads, lanes, rows, loads, own=True)
        waiting = _waiting(info, problem.batch * view.n, chunks)
        if waiting is not None and waiting.fits(info, problem):
            return waiting
        few = problem.batch * view.n * chunks <= _FEW_CHUNKS and 32 < chunks <= 512
        if not few or heuristics.program_workgroup(info) is not None:
            return own
        # In the chain of a small model's dispatches, each row on its way as a whole: 576 x 576 0.6 us less than in two
        # passes of 32 lanes, 576 x 1536 0.4 less than in two of 64 (H200, with a residual that is read early).
        whole = GemvTile(256, 128, 1, -(-chunks // 128), flat=True, own=True)
        return whole if whole.fits(info, problem) else own
    return GemvTile(threads, lanes, rows, loads)


def _waiting(info: DeviceInfo, n: int, chunks: int) -> GemvTile | None:
    """The tile for ``n`` rows of so many chunks where dispatches wait for each other, None where they do not or that is
    too much: all workgroups are resident, and those of many rows take them in turns."""
    if chunks <= 32 or n * chunks > MOST_CHUNKS or not heuristics.dispatches_wait(info):
        return None
    few, turns = n * chunks <= _FEW_CHUNKS, 2 * heuristics.compute_units(info)
    split = whole_rows(chunks)
    if split is not None:
        return GemvTile(128 if few else 256, *split, flat=True, own=True, direct=True, turns=0 if few else turns)
    # 2048 x 5632: two rows a team, six loads of every lane.
    lanes = next((lanes for lanes in (128, 256) if -(-chunks // lanes) <= 8), None)
    return None if lanes is None or few else GemvTile(256, lanes, 2, -(-chunks // lanes), True, True, turns=turns)


def whole_rows(chunks: int) -> tuple[int, int, int] | None:
    """Lanes, rows and loads with which a part of a subgroup has a whole row of so many chunks on its way, if any.

    For dispatches that wait for each other: few workgroups, all resident beside those of the dispatch before, whose
    sums need no shared memory. A layer of SmolLM2 takes 13.7 us so, with a row in 128 lanes 17 (H200, halves).
    """
    lanes = next((n for n in (8, 16, 32) if -(-chunks // n) <= _MOST_LOADS), None)
    return None if lanes is None else (lanes, 1, -(-chunks // lanes))


def _columns(problem: Problem, view: Skinny) -> GemvColumnsTile:
    # 128 bytes of a row of weights (H200, independent launches: 3.9 TB/s; 64 bytes: 3.1-3.6), 64 where that would leave
    # most of a large card without a workgroup.
    load = view.width * view.weights.itemsize
    wide = problem.batch * view.n * view.weights.itemsize >= 48 * 128
    lanes = max(1, min(32, (128 if wide else 64) // load))
    most = 256 if view.m < 8 else 128
    threads = min(most, max(64, lanes * _power_of_two_at_most(-(-view.k // 8))))
    return GemvColumnsTile(threads, lanes, 1, 8)


def plan(kernel: VulkanTemplateKernel, tile: SkinnyTile, problem: Problem) -> tuple[str, dict[str, Any], Any]:
    """The template of ``tile``, its context, and the number of workgroups."""
    view, inputs = skinny(problem), kernel.inputs
    wrap = glsl_type(kernel.node.get_dtype()).wrap
    a_size, b_size = inputs[0].get_size(), inputs[1].get_size()
    batch = a_size[0] if len(a_size) == 3 else sympy.S.One
    few, many, k = a_size[-2], b_size[-1], a_size[-1]
    # Strides of (batch, row, k): of a as it lies, of b across.
    strides = [_strides(inputs[0], -2, -1), _strides(inputs[1], -1, -2)]
    x, w = 0, 1
    if view.swapped:
        few, many, x, w = many, few, 1, 0
    values = {
        "m": kernel.size(few),
        "n": kernel.size(many),
        "k": kernel.size(k),
        "batch": kernel.size(batch),
        "wrapped": f"{wrap}(sum)",
        "swapped": view.swapped,
        "x_strides": [_offset(kernel, s) for s in strides[x]],
        "w_strides": [_offset(kernel, s) for s in strides[w]],
        "x_address": _address(kernel, x),
        "w_address": _address(kernel, w),
        **_types(kernel.device_info, tile, view),
        **_scales(kernel, tile, view, strides[x][2], strides[w][2]),
        **_passes(kernel.device_info, tile, view, k),
        **_eager(tile, view),
    }
    groups = batch * ceildiv(few, view.m) * ceildiv(many, tile.outputs(view))
    if isinstance(tile, GemvTile):
        passes, rest = values["passes"], values["rest"]
        once = passes is not None and passes <= 1 and not (passes and rest)
        known = all(isinstance(n, (int, sympy.Integer)) for n in (batch, few, many))
        values["turns"] = bool(tile.turns and once and values["flat"] and known and batch == 1 and few <= view.m)
        if values["turns"]:
            groups = min(groups, tile.turns)
    return tile.template, values, groups


def _strides(operand: Any, row: int, k: int) -> list[Any]:
    stride = list(operand.get_layout().stride)
    return [stride[0] if len(stride) == 3 else sympy.S.Zero, stride[row], stride[k]]


def _offset(kernel: VulkanTemplateKernel, expr: Any) -> str:
    """GLSL of a stride or an offset, 64 bits wide where indices are."""
    text = kernel.size(expr)
    return text if kernel.index_dtype == "int" else f"int64_t{text}"


def _address(kernel: VulkanTemplateKernel, position: int) -> Callable[[str], str]:
    """A function from a GLSL index into operand ``position`` to GLSL of its address."""
    operand = kernel.inputs[position]
    var = kernel.args.input(operand.get_name())
    offset = operand.get_layout().offset
    shift = "" if offset == 0 else f" + {_offset(kernel, offset)}"
    return lambda index: f"uint64_t({var}) + uint64_t({index}{shift}) * {operand.get_dtype().itemsize}ul"


def _types(info: DeviceInfo, tile: SkinnyTile, view: Skinny) -> dict[str, Any]:
    """What the templates take of the tile and of dtypes."""
    dtype, entry, width, x_width = view.dtype, glsl_type(view.dtype), view.width, tile.x_width(view)
    cluster = tile.cluster(info, view)
    return {
        **tile.values(info, Problem(1, 1, 1, 1, dtype)),
        "tm": view.m,
        "width": width,
        "x_width": x_width,
        "pieces": width // x_width,
        "cluster": cluster,
        "whole_subgroup": cluster == info.limits.subgroup_size_max,
        "accumulator": view.register,
        "zero": literal(0, dtype),
        "w_type": load_type(view.weights, width),
        "x_type": load_type(dtype, x_width),
        "w_buffer": f"Buffer_{load_type(view.weights, width)}",
        "x_buffer": f"Buffer_{load_type(dtype, x_width)}",
        "x_scalar": entry.buffer,
        "dot": dtype == torch.int8 and min(width, x_width) >= 4 and not view.columns and has_dot_product(info),
        "w_words": lambda name: words_of(dtype, width, name),
        "x_words": lambda name: words_of(dtype, x_width, name),
        "w_elements": lambda name: converted(view.weights, dtype, width, name),
        "x_elements": lambda name: elements(dtype, x_width, name),
        "x_element": entry.load.format,
    }


def _eager(tile: SkinnyTile, view: Skinny) -> dict[str, bool]:
    """What a tile says of latency, where that is possible: only words of 32 bits may be chosen from."""
    if not isinstance(tile, GemvTile):
        return {}
    words = view.width * view.weights.itemsize >= 4 and tile.x_width(view) * view.dtype.itemsize >= 4
    return {"flat": tile.flat and words and view.dtype.itemsize <= 4, "own_loads": tile.own, "direct": tile.direct}


def _scales(kernel: VulkanTemplateKernel, tile: SkinnyTile, view: Skinny, x: Any, w: Any) -> dict[str, str]:
    """What follows the index of a load: strides along k, in loads."""

    def scale(stride: Any) -> str:
        return "" if stride == 1 else f" * {_offset(kernel, stride)}"

    if isinstance(tile, GemvColumnsTile):
        return {"w_scale": scale(sympy.sympify(w) / view.width), "x_scale": scale(x)}
    return {
        "w_scale": scale(w) if view.width == 1 else "",
        "x_scale": scale(x) if view.x_width == 1 else "",
    }


def _passes(info: DeviceInfo, tile: SkinnyTile, view: Skinny, k: Any) -> dict[str, Any]:
    """How often the loop over k goes round, and how many loads are left then, some of them by every lane."""
    lanes, width = tile.k_lanes(), tile.loop_width(view)
    if not isinstance(k, (int, sympy.Integer)):
        if loop_limit.limited(info):
            loop_limit.require(k, loop_limit.reach(info, tile.loads * lanes * width, 1, 1), "a matrix product")
        return {"passes": None, "rest": 0, "rest_whole": 0}
    passes, rest = divmod(int(k) // width, lanes * tile.loads)
    return {"passes": passes, "rest": -(-rest // lanes), "rest_whole": rest // lanes}
