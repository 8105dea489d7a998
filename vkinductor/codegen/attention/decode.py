"""Few queries against many keys: keys in pieces, a workgroup each, and a kernel that puts the pieces together."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv
from torch._inductor.virtualized import V

from vkinductor.codegen import heuristics
from vkinductor.codegen.alignment import WIDEST, vector_width
from vkinductor.codegen.compat import size_hint
from vkinductor.codegen.counters import SHARED, counters, turn_bytes
from vkinductor.codegen.template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, realized
from vkinductor.runtime import context
from vkinductor.runtime.deviceinfo import DeviceInfo

from .decode_matrices import TURNED, MatrixTile, distances
from .problem import Problem, strides

# Queries of one key head that this is for, and that one workgroup takes.
MOST_ROWS, ROWS = 32, 8
MOST_QUERIES = 8

# Invocations that put the pieces of one result together.
SPLIT = 8

# Pieces of a head that the last workgroup on matrices puts together, at most, and how many it reads at a time: of more,
# it would read too many in turn.
MOST_COMBINED, COMBINED_AT_ONCE = 32, 8

# Floats in which the results of a workgroup's lines are summed, some rows at a time.
AT_ONCE = 2048


@dataclass(frozen=True)
class DecodeTile:
    """A workgroup of ``threads`` takes pieces of ``threads`` * ``each`` keys. ``loads``: rows on their way to a lane
    at a time, where subgroups read whole rows; 0: an invocation reads a key."""

    threads: int
    each: int
    loads: int = 0

    @property
    def chunk(self) -> int:
        """Keys of a piece."""
        return self.threads * self.each

    def shared(self, info: DeviceInfo, rows: int, width: int, lanes: int) -> int:
        """Bytes of shared memory, at most; ``lanes`` as in ``fits``."""
        if self.loads:
            rows, size = heuristics.power_of_two_at_least(rows), info.limits.subgroup_size
            subgroups, kept = self.threads // size, max(1, rows * (WIDEST // 2) * lanes // size)
            return 4 * (self.chunk * rows + 2 * subgroups * rows + subgroups * kept * (size + 1))
        return 4 * (rows * width + self.chunk * rows + 2 * self.threads + max(AT_ONCE, 8 * self.threads))

    def fits(self, info: DeviceInfo, rows: int, width: int, lanes: int, lanes_k: int | None = None) -> bool:
        """Whether the device's limits hold it, and it ``lanes`` invocations a row of v, ``lanes_k`` (as many) of k."""
        limits = info.limits
        invocations = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        if self.loads and not self._exchanges(info, width, lanes, lanes if lanes_k is None else lanes_k):
            return False
        shared = self.shared(info, rows, width, lanes)
        return lanes <= self.threads <= invocations and shared <= limits.max_shared_memory

    def _exchanges(self, info: DeviceInfo, width: int, lanes: int, lanes_k: int) -> bool:
        limits, size = info.limits, info.limits.subgroup_size
        fixed = limits.subgroup_size_min == size == limits.subgroup_size_max
        return (
            (fixed and info.features.subgroup_shuffle and self.threads % size == 0)
            and all(n <= size and heuristics.power_of_two_at_least(n) == n for n in (lanes, lanes_k))
            and width // lanes_k > 1
        )


# The first that fits and that gives the device enough workgroups is taken, whole rows before keys of their own.
TILES = (
    DecodeTile(128, 4, 8),
    DecodeTile(128, 2, 4),
    DecodeTile(64, 2, 4),
    DecodeTile(256, 2),
    DecodeTile(256, 1),
    DecodeTile(128, 1),
    DecodeTile(64, 1),
)
_FEWEST_WORKGROUPS = {True: 1024, False: 512}
# Before all of those, halves on matrices: for several queries of a head of keys (one is as fast without), and heads up
# to so long (a longer result is more than a subgroup keeps in registers).
MATRIX_TILES = (
    MatrixTile(4, 32, 2048),
    MatrixTile(4, 16, 2048),
    MatrixTile(4, 32, 1024),
    MatrixTile(4, 16, 1024),
    MatrixTile(4, 32, 512),
    MatrixTile(4, 16, 512),
    MatrixTile(4, 32, 256),
    MatrixTile(4, 16, 256),
    MatrixTile(4, 16, 128),
    MatrixTile(4, 16, 64),
)
_FEWEST_QUERIES_OF_MATRICES, _LONGEST_HEAD_OF_MATRICES = 2, 128
_FEWEST_WORKGROUPS_OF_MATRICES = 256
# Elements of a block of keys, which registers have to hold beside as many of values.
_LONGEST_BLOCK_OF_MATRICES = 3072


def _number(expr: Any) -> int | None:
    return int(expr) if isinstance(expr, (int, sympy.Integer)) else None


def rows_of(problem: Problem) -> int | None:
    """Queries that share a head of keys, where their number is fixed and small; else None."""
    length, share = _number(problem.queries), _number(sympy.sympify(problem.heads) / problem.groups)
    if length is None or length > MOST_QUERIES:
        return None
    if share is None:
        share = int(V.graph.sizevars.guard_int(problem.heads)) // int(V.graph.sizevars.guard_int(problem.groups))
    return length * share if length * share <= MOST_ROWS else None


def tile_of(info: DeviceInfo, problem: Problem, q: Any, k: Any, v: Any) -> DecodeTile | MatrixTile | None:
    """A tile for ``problem`` with these operands, None where it is for another template.

    heuristics.override(attention_decode=DecodeTile(...) or MatrixTile(...)) takes that one where it can,
    attention_decode=False none.
    """
    if heuristics.forced("attention_decode") is False:
        return None
    lanes_k, lanes = -(-problem.width // _width(k, problem.width)), -(-problem.width_v // _width(v, problem.width_v))
    aligned = all(vector_width(x, 3) * x.get_dtype().itemsize == WIDEST for x in (q, k, v))
    return tile_with(info, problem, lanes, lanes_k, aligned)


def tile_with(
    info: DeviceInfo, problem: Problem, lanes: int, lanes_k: int | None = None, aligned: bool = True
) -> DecodeTile | MatrixTile | None:
    """The same where ``lanes`` invocations read a row of v, ``lanes_k`` (or as many) one of k. ``aligned``: all rows
    begin at multiples of 16 bytes."""
    forced = heuristics.forced("attention_decode")
    total = rows_of(problem)
    if total is None or forced is False:
        return None
    if aligned and (forced is None or isinstance(forced, MatrixTile)):
        matrices = _matrix_tile(info, problem, total)
        if matrices is not None:
            return matrices
    if isinstance(forced, MatrixTile):
        forced = None
    rows = min(total, ROWS)
    fitting = [t for t in TILES if t.fits(info, rows, problem.width, lanes, lanes_k)]
    if forced is not None:
        if forced.fits(info, rows, problem.width, lanes, lanes_k):
            return forced
        fitting = [t for t in (DecodeTile(forced.threads, forced.each),) if t.fits(info, rows, problem.width, lanes)]
    # Whole rows, where they can be read: else no tile has loads.
    fitting = [t for t in fitting if t.loads] or fitting
    pairs, keys = size_hint(problem.batch * problem.groups) * -(-total // rows), size_hint(problem.keys)
    for tile in fitting:
        if pairs * -(-keys // tile.chunk) >= _FEWEST_WORKGROUPS[tile.loads > 0]:
            return tile
    return fitting[-1] if fitting else None


def _matrix_tile(info: DeviceInfo, problem: Problem, total: int) -> MatrixTile | None:
    forced = heuristics.forced("attention_decode")
    longest = max(problem.width, problem.width_v)
    if forced is None and (total < _FEWEST_QUERIES_OF_MATRICES or longest > _LONGEST_HEAD_OF_MATRICES):
        return None
    if forced is None:
        fitting = matrix_tiles(info, problem, total)
    else:
        fitting = [forced] if forced.fits(info, problem.dtype, problem.width, problem.width_v) else []
    pairs, keys = size_hint(problem.batch * problem.groups), size_hint(problem.keys)
    # More pieces than one workgroup puts together take a dispatch more: 11.2 us instead of 8.7 with half the workgroups
    # (one sequence, 32/4 heads of 64, 8192 keys, H200).
    fitting = [t for t in fitting if -(-keys // t.chunk) <= MOST_COMBINED] or fitting
    workgroups = [pairs * -(-total // tile.slots) * -(-keys // tile.chunk) for tile in fitting]
    enough = min(_FEWEST_WORKGROUPS_OF_MATRICES, max(workgroups, default=0))
    return next((tile for tile, n in zip(fitting, workgroups, strict=True) if n >= enough), None)


def matrix_tiles(info: DeviceInfo, problem: Problem, total: int) -> list[MatrixTile]:
    """Those for ``total`` queries of a head of keys that fit, in order; turned where all of them are columns of one."""
    dtype, width, width_v = problem.dtype, problem.width, problem.width_v
    tiles = [t for t in MATRIX_TILES if t.block * max(width, width_v) <= _LONGEST_BLOCK_OF_MATRICES]
    turned = [dataclasses.replace(t, turned=True) for t in tiles] if total <= TURNED[1] else []
    return [t for t in turned if t.fits(info, dtype, width, width_v)] or [
        t for t in tiles if t.fits(info, dtype, width, width_v)
    ]


def _common(kernel: VulkanTemplateKernel, problem: Problem, total: int) -> dict[str, Any]:
    length = int(problem.queries)
    return problem.context(kernel) | {"length": length, "share": total // length, "total": total}


def _width(operand: Any, columns: int) -> int:
    width = vector_width(operand, 3)
    least = 1 if operand.get_dtype() == torch.float32 else 2
    return width if width > least or ((width == least > 1) and columns % width == 0) else 1


def _address(kernel: VulkanTemplateKernel, operand: Any) -> str:
    name = kernel.args.input(operand.get_name())
    return f"uint64_t({name}) + uint64_t({kernel.size(operand.get_layout().offset)}) * {operand.get_dtype().itemsize}ul"


def _plan_pieces(
    kernel: VulkanTemplateKernel, problem: Problem, tile: DecodeTile | MatrixTile, total: int, single: bool,
    combines: bool = False,
) -> tuple[str, dict[str, Any], Any]:  # fmt: skip
    masked = bool(problem.mask)
    rows = tile.rows(kernel.device_info, total) if isinstance(tile, MatrixTile) else min(total, ROWS)
    blocks = -(-total // rows)
    q, k, v = kernel.inputs[:3]
    values = _common(kernel, problem, total) | {
        "rows": rows,
        "blocks": blocks,
        "single": single,
        "combines": combines,
        "address_k": _address(kernel, k),
        "address_v": _address(kernel, v),
        "load_q": kernel.operand(0),
        "load_k": kernel.operand(1),
        "load_v": kernel.operand(2),
        "load_mask": kernel.operand(3) if masked else None,
        "store_lse": kernel.result(3 + masked) if single or combines else None,
        "q_strides": strides(kernel, 0),
        "k_strides": strides(kernel, 1),
        "v_strides": strides(kernel, 2),
        "mask_strides": strides(kernel, 3) if masked else None,
    }
    groups = problem.batch * problem.groups * ceildiv(problem.keys, tile.chunk) * blocks
    if combines:
        for scratch in kernel.inputs[-2:]:
            kernel.written.add(kernel.args.input(scratch.get_name()))
        # Two attentions that share nothing else do not wait for each other's counters: 8 x 32/4 heads of 64, 8192 keys,
        # 16.1 us a call instead of 21.7 (H200).
        kernel.takes_turns(len(kernel.inputs) - 1, turn_bytes(int(problem.batch * problem.groups) * blocks))
        pieces = size_hint(ceildiv(problem.keys, tile.chunk))
        values |= {
            "at_once": max(1, min(pieces, COMBINED_AT_ONCE)),
            "parts_address": kernel.address(len(kernel.inputs) - 2),
            "counters_address": kernel.address(len(kernel.inputs) - 1),
        }
    if isinstance(tile, MatrixTile):
        values |= {"address_q": _address(kernel, q), **tile.context(kernel.device_info, problem, rows)}
        return "attention_decode_matrices.glsl.jinja", values, groups
    wide_k, wide_v = _width(k, problem.width), _width(v, problem.width_v)
    lanes = -(-problem.width_v // wide_v)
    values |= {
        "threads": tile.threads,
        "each": tile.each,
        "at_once": max(1, min(rows, AT_ONCE // (tile.threads // lanes * lanes * wide_v))),
        "kind": str(problem.dtype).removeprefix("torch."),
        "wide_k": wide_k,
        "wide_v": wide_v,
    }
    if tile.loads == 0:
        return "attention_decode.glsl.jinja", values, groups
    size = kernel.device_info.limits.subgroup_size
    lanes_k = problem.width // wide_k
    values |= {
        "size": size,
        "padded": heuristics.power_of_two_at_least(rows),
        "wide_q": _width(q, problem.width),
        "address_q": _address(kernel, q),
        "unroll_k": math.gcd(tile.loads, tile.each * lanes_k),
        "unroll_v": math.gcd(tile.loads, tile.each * lanes),
        "masks_k": distances(1, lanes_k),
        "masks_lines": distances(lanes_k, size),
        "masks_v": distances(lanes, size),
    }
    return "attention_decode_teams.glsl.jinja", values, groups


def _plan_combine(
    kernel: VulkanTemplateKernel, problem: Problem, tile: DecodeTile | MatrixTile, total: int
) -> tuple[str, dict[str, Any], Any]:
    threads = heuristics.pointwise(kernel.device_info).workgroup
    split = 1 if kernel.device_info.kind == "cpu" else math.gcd(threads, SPLIT)
    values = _common(kernel, problem, total) | {
        "threads": threads,
        "split": heuristics.forced("attention_split") or split,
        "pieces": kernel.size(ceildiv(problem.keys, tile.chunk)),
        "load": kernel.operand(0),
        "store_lse": kernel.result(1),
    }
    elements = problem.batch * problem.heads * int(problem.queries) * problem.width_v
    return "attention_combine.glsl.jinja", values, ceildiv(elements * values["split"], threads)


def _combines(problem: Problem, pieces: Any, total: int, tile: MatrixTile) -> bool:
    """Whether whoever comes last puts pieces together, where that takes no dispatch to fill counters.

    8 x 32/4 heads of 64, 8192 keys, H200: 25.1 us in two dispatches, 22.8 in one. Not faster: that whoever began last
    waits for parts, counted as written (22.5 instead of 21.8 us) or zero until they are there (22.6 to 34).
    """
    pairs = _number(problem.batch * problem.groups)
    if pairs is None or size_hint(pieces) > MOST_COMBINED:
        return False  # pairs are counted, so their number must not vary
    forced = heuristics.forced("attention_decode_combines")
    blocks = -(-total // tile.rows(context.get().info, total))
    return pairs * blocks <= SHARED if forced is None else bool(forced)


def decode(
    problem: Problem, tile: DecodeTile | MatrixTile, inputs: list[Any], lse: Any, layout: FixedLayout
) -> TensorBox:
    """The result's node (its lse goes into ``lse``)."""
    total = rows_of(problem)
    assert total is not None
    results = [realized(lse)]
    if V.graph.sizevars.statically_known_leq(problem.keys, tile.chunk):
        plan = functools.partial(_plan_pieces, problem=problem, tile=tile, total=total, single=True)
        return TensorBox.create(
            VulkanTemplateBuffer(layout, [*inputs, *results], plan, name="attention_decode", also=results)
        )
    pieces = ceildiv(problem.keys, tile.chunk)
    if isinstance(tile, MatrixTile) and _combines(problem, pieces, total, tile):
        rows = tile.rows(context.get().info, total)
        blocks = problem.batch * problem.groups * -(-total // rows)
        stride = -(-rows * (problem.width_v + 2) // 4) * 4
        parts = lowering.empty_strided([blocks, pieces, stride], None, dtype=torch.float32, device=layout.device)
        scratch = [realized(parts), counters(int(blocks), layout.device)]
        plan = functools.partial(_plan_pieces, problem=problem, tile=tile, total=total, single=False, combines=True)
        inputs, also = [*inputs, *results, *scratch], [*results, *scratch]
        return TensorBox.create(VulkanTemplateBuffer(layout, inputs, plan, name="attention_decode", also=also))
    size = [problem.batch * problem.groups, pieces, total, problem.width_v + 2]
    parts = FixedLayout(layout.device, torch.float32, size, FlexibleLayout.contiguous_strides(size))
    plan = functools.partial(_plan_pieces, problem=problem, tile=tile, total=total, single=False)
    made = TensorBox.create(VulkanTemplateBuffer(parts, inputs, plan, name="attention_decode", fuses=False))
    combine = functools.partial(_plan_combine, problem=problem, tile=tile, total=total)
    return TensorBox.create(
        VulkanTemplateBuffer(layout, [realized(made), *results], combine, name="attention_combine", also=results)
    )
