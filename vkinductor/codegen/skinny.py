"""Products with one to sixteen rows (GEMV, skinny GEMM): bound by reading the weights, once, at full bandwidth.

The operand with few rows is x, the other the weights; ``a @ b`` with few columns is the same with the roles swapped.
Weights contiguous in k, as of nn.Linear, are read along k by teams of lanes whose sums meet by subgroup arithmetic;
weights contiguous in n along n. Bias and whatever follows fuse into the stores. CPU drivers keep the direct template.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor.utils import ceildiv, upcast_compute_type
from torch._inductor.virtualized import V

from vkinductor.runtime.deviceinfo import DeviceInfo

from . import heuristics, loop_limit
from .alignment import vector_width
from .compat import size_hint
from .template_kernel import VulkanTemplateKernel
from .types import glsl_type, literal
from .vectors import elements, load_type, narrowest

ROWS = "gemv.glsl.jinja"
COLUMNS = "gemv_columns.glsl.jinja"

# More rows are a matter for tiles.
MOST_ROWS = 16

# What an invocation keeps in registers: sums, and 32-bit words of weights on their way.
_MOST_SUMS = 64
_MOST_WORDS = 128


@dataclass(frozen=True)
class Tile:
    """One way to cut a skinny product: ``threads`` a workgroup, ``loads`` loads of weights in flight a row of them.

    ROWS: teams of ``lanes`` split k, each for ``rows`` rows of weights. COLUMNS: ``lanes`` lie along n, the other
    threads / lanes split k; the sums of ``rows`` rows of x pass through shared memory at a time.
    """

    template: str
    threads: int
    lanes: int
    rows: int
    loads: int


@dataclass(frozen=True)
class Problem:
    """x [batch, m, k] times weights [batch, n, k]: likely sizes, dtype, elements a load of x and of weights may take.

    ``k_contiguous``: whether weights are contiguous in k rather than n.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: torch.dtype
    width: int
    x_width: int
    k_contiguous: bool

    @property
    def template(self) -> str:
        """Which template reads the weights coalesced."""
        return ROWS if self.k_contiguous else COLUMNS

    @property
    def accumulator(self) -> Any:
        """The row of the dtype table that sums live in."""
        return glsl_type(upcast_compute_type(self.dtype))


# Starting points by measurement on an H100 come first to last; the heuristics below pick by shape, tuning by time.
CANDIDATES = (
    *(
        Tile(ROWS, threads, lanes, rows, loads)
        for threads, lanes in ((64, 64), (128, 128), (256, 256), (128, 32), (128, 16), (128, 8), (32, 32))
        for rows, loads in ((4, 4), (4, 2), (2, 4), (2, 8), (8, 2), (4, 1), (2, 2), (1, 8), (1, 4))
    ),
    *(
        Tile(COLUMNS, threads, lanes, rows, loads)
        for threads, lanes in ((256, 8), (256, 4), (128, 8), (128, 4), (512, 8), (256, 16), (256, 32))
        for rows, loads in ((1, 8), (1, 4))
    ),
)


def cluster(info: DeviceInfo, tile: Tile, problem: Problem) -> int:
    """How many neighbours of a team add up by subgroup arithmetic; 1: through shared memory alone."""
    limits, features = info.limits, info.features
    lanes = min(tile.lanes, limits.subgroup_size_min)
    clustered = features.subgroup_clustered or lanes == limits.subgroup_size_max
    plain = problem.accumulator.register in ("float", "int", "uint")
    whole = tile.threads % limits.subgroup_size_max == 0 or tile.threads < limits.subgroup_size_min
    return lanes if features.subgroup_arithmetic and clustered and plain and whole else 1


def shared_elements(info: DeviceInfo, tile: Tile, problem: Problem) -> int:
    """Sums that a workgroup keeps in shared memory."""
    if tile.template == COLUMNS:
        return tile.rows * tile.threads * problem.width
    teams, outputs = tile.threads // tile.lanes, tile.rows * problem.m
    together = cluster(info, tile, problem)
    if together > 1:
        return teams * (tile.lanes // together) * outputs
    return teams * outputs + (tile.threads if tile.lanes > 1 else 0)


def fits(info: DeviceInfo, tile: Tile, problem: Problem) -> bool:
    """Whether limits of ``info`` and an invocation's registers hold ``tile``, and its loops can finish."""
    limits = info.limits
    words = -(-problem.width * problem.dtype.itemsize // 4)
    rows = tile.rows if tile.template == ROWS else 1
    sums = problem.m * (tile.rows if tile.template == ROWS else problem.width)
    a_pass = tile.loads * (tile.lanes * problem.width if tile.template == ROWS else tile.threads // tile.lanes)
    return (
        tile.template == problem.template
        and tile.threads <= min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        and shared_elements(info, tile, problem) * problem.accumulator.nbytes <= limits.max_shared_memory
        and sums <= _MOST_SUMS
        and words * rows * tile.loads <= _MOST_WORDS
        and (tile.template == ROWS or tile.loads % min(problem.x_width, tile.loads) == 0)
        and loop_limit.reach(info, a_pass, 1, 1) >= problem.k
    )


def _power_of_two_at_most(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def choose(info: DeviceInfo, problem: Problem) -> Tile | None:
    """A tile for ``problem`` on ``info``; None where the other templates are to be asked."""
    forced = heuristics.forced("skinny")
    if forced is not None:
        return forced if fits(info, forced, problem) else None
    if info.kind == "cpu":
        return None
    tile = _rows(problem) if problem.k_contiguous else _columns(problem)
    # Limits below those of any GPU known cost speed, never the product.
    while not fits(info, tile, problem):
        if tile.loads > 1:
            tile = Tile(tile.template, tile.threads, tile.lanes, tile.rows, tile.loads // 2)
        elif tile.rows > 1:
            tile = Tile(tile.template, tile.threads, tile.lanes, tile.rows // 2, tile.loads)
        elif tile.threads > 32:
            tile = Tile(tile.template, tile.threads // 2, min(tile.lanes, tile.threads // 2), tile.rows, tile.loads)
        else:
            return None
    return tile


def _rows(problem: Problem) -> Tile:
    chunks = -(-problem.k // problem.width)
    rows = 4 if problem.m <= 8 or problem.width <= 4 else 2
    loads = 4 if problem.m <= 4 else 2
    lanes = min(128, max(8, _power_of_two_at_most(-(-chunks // loads))))
    threads = max(64, lanes)
    # Few outputs: more workgroups.
    while rows > 1 and problem.batch * problem.n < 512 * rows * (threads // lanes):
        rows //= 2
    return Tile(ROWS, threads, lanes, rows, loads)


def _columns(problem: Problem) -> Tile:
    # 64 bytes of a row of weights: two sectors.
    lanes = max(1, min(32, 64 // (problem.width * problem.dtype.itemsize)))
    threads = min(256, max(64, lanes * _power_of_two_at_most(-(-problem.k // 8))))
    return Tile(COLUMNS, threads, lanes, 1, 8 if problem.m <= 8 else 4)


@contextlib.contextmanager
def forced(tile: Tile | None) -> Iterator[None]:
    """Take ``tile`` for every skinny product generated inside that it fits, on any device."""
    with heuristics.override(skinny=tile):
        yield


def _strides(operand: Any, row: int, column: int) -> list[Any]:
    stride = list(operand.get_layout().stride)
    return [stride[0] if len(stride) == 3 else sympy.S.Zero, stride[row], stride[column]]


def plan(kernel: VulkanTemplateKernel) -> tuple[str, dict[str, Any], Any] | None:
    """What VulkanTemplateBuffer asks of a plan, for a product that is skinny and has a tile; else None."""
    size = kernel.node.get_size()
    batch, few, many = (size[0] if len(size) == 3 else sympy.S.One), size[-2], size[-1]
    swapped = size_hint(few) > MOST_ROWS or (size_hint(many) == 1 and size_hint(few) > 1)
    if swapped:
        few, many = many, few
    if size_hint(few) > MOST_ROWS:
        return None
    x, w = reversed(range(2)) if swapped else range(2)
    x_strides = _strides(kernel.inputs[x], *((-1, -2) if swapped else (-2, -1)))
    w_strides = _strides(kernel.inputs[w], *((-2, -1) if swapped else (-1, -2)))
    k = kernel.inputs[0].get_size()[-1]
    dtype = kernel.node.get_dtype()

    def width(operand: int, contiguous: int) -> int:
        return narrowest(dtype, vector_width(kernel.inputs[operand], contiguous))

    k_contiguous = w_strides[2] == 1 or w_strides[1] != 1
    along_k = (-1 if swapped else -2), (-2 if swapped else -1)
    w_width = width(w, along_k[0] if k_contiguous else along_k[1])
    x_width = width(x, along_k[1])
    hints = [size_hint(s) for s in (batch, few, many, k)]
    m = hints[1]
    if free_symbols(few):
        if not V.graph.sizevars.guard_or_false(sympy.Le(few, MOST_ROWS)):
            return None
        m = 1 << (m - 1).bit_length()
    if k_contiguous:
        x_width = min(x_width, w_width)
    else:
        # Sums of every row for each column of a load.
        while w_width > 1 and w_width * m > _MOST_SUMS:
            w_width = narrowest(dtype, w_width // 2)
    problem = Problem(hints[0], m, hints[2], hints[3], dtype, w_width, x_width, k_contiguous)
    tile = choose(kernel.device_info, problem)
    if tile is None:
        return None
    context = _context(kernel, problem, tile, x, w)
    context |= {
        "swapped": swapped,
        "m": kernel.size(few),
        "n": kernel.size(many),
        "k": kernel.size(k),
        "batch": kernel.size(batch),
    }
    context["x_strides"] = [_wide(kernel, s) for s in x_strides]
    context["w_strides"] = [_wide(kernel, s) for s in w_strides]
    context |= _scales(kernel, problem, x_strides, w_strides, context["x_width"])
    context |= _passes(kernel, problem, tile, k)
    outputs = tile.rows * (tile.threads // tile.lanes) if tile.template == ROWS else tile.lanes * problem.width
    return tile.template, context, batch * ceildiv(few, problem.m) * ceildiv(many, outputs)


def free_symbols(expr: Any) -> Any:
    """Symbols of a size."""
    return sympy.sympify(expr).free_symbols


def _wide(kernel: VulkanTemplateKernel, expr: Any) -> str:
    """GLSL of a stride, 64 bits wide where indices are."""
    text = kernel.size(expr)
    return text if kernel.index_dtype == "int" else f"int64_t{text}"


def _scales(
    kernel: VulkanTemplateKernel, problem: Problem, x_strides: list[Any], w_strides: list[Any], x_width: int
) -> dict[str, str]:
    """What follows the index of a load: the stride along k, in loads."""

    def scale(stride: Any) -> str:
        return "" if stride == 1 else f" * {_wide(kernel, stride)}"

    if problem.k_contiguous:
        return {
            "w_scale": scale(w_strides[2]) if problem.width == 1 else "",
            "x_scale": scale(x_strides[2]) if x_width == 1 else "",
        }
    return {"w_scale": scale(sympy.sympify(w_strides[2]) / problem.width), "x_scale": scale(x_strides[2])}


def _passes(kernel: VulkanTemplateKernel, problem: Problem, tile: Tile, k: Any) -> dict[str, Any]:
    """How often the loop over k goes round and what is left then, where k is known."""
    lanes = tile.lanes if tile.template == ROWS else tile.threads // tile.lanes
    width = problem.width if tile.template == ROWS else 1
    if free_symbols(k):
        if loop_limit.limited(kernel.device_info):
            most = loop_limit.reach(kernel.device_info, tile.loads * lanes * width, 1, 1)
            loop_limit.require(k, most, "a matrix product")
        return {"passes": None, "rest": 0, "rest_whole": 0}
    chunks = int(k) // width
    passes, rest = divmod(chunks, lanes * tile.loads)
    return {"passes": passes, "rest": -(-rest // lanes), "rest_whole": rest // lanes}


def _context(kernel: VulkanTemplateKernel, problem: Problem, tile: Tile, x: int, w: int) -> dict[str, Any]:
    """What the templates take of dtypes and tile."""
    info, dtype = kernel.device_info, problem.dtype
    entry, register = glsl_type(dtype), problem.accumulator
    width = problem.width
    x_width = problem.x_width if tile.template == ROWS else min(problem.x_width, tile.loads)
    x_width = narrowest(dtype, x_width)
    together = cluster(info, tile, problem)
    return {
        "threads": tile.threads,
        "lanes": tile.lanes,
        "rows": tile.rows,
        "loads": tile.loads,
        "tm": problem.m,
        "width": width,
        "x_width": x_width,
        "pieces": width // x_width,
        "cluster": together,
        "whole_subgroup": together == info.limits.subgroup_size_max,
        "accumulator": register.register,
        "zero": literal(0, upcast_compute_type(dtype)),
        "wrapped": f"{entry.wrap}(sum)" if entry.wrap else "sum",
        "w_type": load_type(dtype, width),
        "x_type": load_type(dtype, x_width),
        "w_buffer": f"Buffer_{load_type(dtype, width)}",
        "x_buffer": f"Buffer_{load_type(dtype, x_width)}",
        "x_scalar": entry.buffer,
        "w_elements": lambda name: elements(dtype, width, name),
        "x_elements": lambda name: elements(dtype, x_width, name),
        "x_element": entry.load.format,
        "w_address": _address(kernel, w),
        "x_address": _address(kernel, x),
    }


def _address(kernel: VulkanTemplateKernel, position: int) -> Any:
    """A function from a GLSL index into operand ``position`` to GLSL of its address."""
    operand = kernel.inputs[position]
    var = kernel.args.input(operand.get_name())
    nbytes = operand.get_dtype().itemsize
    offset = operand.get_layout().offset
    shift = "" if offset == 0 else f" + {_wide(kernel, offset)}"
    return lambda index: f"uint64_t({var}) + uint64_t({index}{shift}) * {nbytes}ul"
