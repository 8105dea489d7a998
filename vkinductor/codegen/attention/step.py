"""Lowering of vkinductor.attention_step: rotary, cache write and attention of a decode step in one dispatch."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, TensorBox

from vkinductor.codegen import heuristics
from vkinductor.codegen.alignment import vector_width
from vkinductor.codegen.compat import size_hint
from vkinductor.codegen.counters import counters
from vkinductor.codegen.template_kernel import (
    HALVES,
    VulkanTemplateBuffer,
    VulkanTemplateKernel,
    laid_out,
    realized,
)
from vkinductor.runtime import context
from vkinductor.runtime.errors import UnsupportedError

from .decode import _address, _number, _width
from .decode_matrices import distances
from .problem import Problem, heads_inside, number, strides
from .step_tiles import Cut, Shape, StepTile, step_tile

# Floats of other workgroups' parts that an invocation has on their way.
PARTS_HELD = 64

# Operands whose rows the lanes of a subgroup read.
_ROWS = ("q", "k", "cos", "sin", "q_weight", "k_weight")


@dataclasses.dataclass(frozen=True)
class Step:
    """One call of the operator: its problem, tile, options, and the places of its operands among the kernel's.

    ``places``: operand -> position, for those that there are.
    """

    problem: Problem
    shape: Shape
    tile: StepTile
    places: dict[str, int]
    window: int
    softcap: float
    eps: float
    weight_offset: float
    interleaved: bool
    combines: bool


def attention_step(
    q: TensorBox, k: TensorBox, v: TensorBox, key_cache: TensorBox, value_cache: TensorBox, position: TensorBox,
    cos: TensorBox | None, sin: TensorBox | None, q_weight: TensorBox | None, k_weight: TensorBox | None,
    mask: TensorBox | None, start: TensorBox | None, slopes: TensorBox | None, scale: Any, causal: bool = True,
    window: int = 0, softcap: float = 0.0, eps: float = 0.0, weight_offset: float = 0.0, interleaved: bool = False,
) -> TensorBox:  # fmt: skip
    """vkinductor.attention_step; raises UnsupportedError for what its kernel does not take."""
    named = {
        "q": q, "k": k, "v": v, "key_cache": key_cache, "value_cache": value_cache, "position": position, "cos": cos,
        "sin": sin, "q_weight": q_weight, "k_weight": k_weight, "mask": mask, "start": start, "slopes": slopes,
    }  # fmt: skip
    operands = {name: laid_out(x) for name, x in named.items() if x is not None}
    problem = Problem.of(q, key_cache, value_cache, mask, causal, scale)
    shape = _shape(problem, operands)
    pairs, keys = size_hint(problem.batch * problem.groups), size_hint(problem.keys)
    tile = None if shape is None else step_tile(context.get().info, shape, pairs, keys)
    if shape is None or tile is None:
        raise UnsupportedError(
            f"vkinductor.attention_step has no kernel for q {q.get_size()} and caches {key_cache.get_size()} on this "
            "device: it needs at most 8 queries, 32 that share a head of keys, even heads of at most 256 elements, and "
            "subgroups that exchange values"
        )
    device = q.get_device_or_error()
    size = [problem.batch, problem.heads, problem.queries, problem.width_v]
    layout = FixedLayout(device, q.get_dtype(), size, heads_inside(size))
    names = list(operands)
    written = [operands["key_cache"], operands["value_cache"]]
    combines = heuristics.forced("attention_step_combines") is not False or tile.pieces == 1
    cut = tile.cut(shape, context.get().info.limits.subgroup_size)
    scratch: list[Any] = []
    if tile.pieces > 1:
        parts = [problem.batch * problem.groups * cut.blocks, tile.pieces * cut.stride]
        names.append("parts")
        scratch.append(realized(lowering.empty_strided(parts, None, dtype=torch.float32, device=device)))
        if combines:
            names.append("counters")
            scratch.append(counters(pairs * cut.blocks, device))
    step = Step(
        problem, shape, tile, {name: i for i, name in enumerate(names)}, window, softcap, eps, weight_offset,
        interleaved, combines,
    )  # fmt: skip
    plan = functools.partial(_plan_step, step=step)
    inputs = [*operands.values(), *scratch]
    if combines:
        node = VulkanTemplateBuffer(layout, inputs, plan, name="attention_step", also=[*written, *scratch])
        return TensorBox.create(node)
    # The parts' kernel has no result of its own but those.
    nothing = FixedLayout(device, torch.float32, [1], [1])
    pieces = VulkanTemplateBuffer(nothing, inputs, plan, name="attention_step", fuses=False, also=[*written, *scratch])
    seconds = ["position", *(["start"] if start is not None else []), "parts"]
    second = dataclasses.replace(step, places={name: i for i, name in enumerate([*seconds, "order"])})
    inputs = [*(operands[name] for name in seconds[:-1]), *scratch, realized(TensorBox.create(pieces))]
    combine = functools.partial(_plan_combine, step=second)
    return TensorBox.create(VulkanTemplateBuffer(layout, inputs, combine, name="attention_step_combine"))


def _shape(problem: Problem, operands: dict[str, Any]) -> Shape | None:
    """The fixed numbers of a problem, None where one varies or is not served."""
    length = _number(problem.queries)
    heads, groups = _number(problem.heads), _number(problem.groups)
    if length is None or heads is None or groups is None or problem.width % 2 or problem.width_v % 2:
        return None
    if max(problem.width, problem.width_v) > 256:
        return None
    wide_k = _width(operands["key_cache"], problem.width)
    wide_v = min(_width(operands[name], problem.width_v) for name in ("value_cache", "v"))
    if min(wide_k, wide_v) * problem.dtype.itemsize < 4:
        return None
    return Shape(length * (heads // groups), length, problem.width, problem.width_v, wide_k, wide_v)


def _common(kernel: VulkanTemplateKernel, step: Step) -> dict[str, Any]:
    """What both templates are told."""
    info = kernel.device_info
    shape, tile, places = step.shape, step.tile, step.places
    cut, part = tile.cut(shape, info.limits.subgroup_size), shape.part(tile.cuts, info.limits.subgroup_size)

    def scalar(name: str) -> Any:
        if name not in places:
            return None
        load = kernel.operand(places[name])
        operand = kernel.inputs[places[name]].get_layout()
        along = kernel.size(operand.stride[0]) if operand.size else "0"
        return lambda index: load(f"{index} * {along}")

    def count(name: str) -> int:
        sizes = kernel.inputs[places[name]].get_layout().size if name in places else []
        return math.prod(int(n) for n in sizes)

    numbers = {field.name: getattr(cut, field.name) for field in dataclasses.fields(cut)}
    return step.problem.context(kernel) | numbers | {
        "length": shape.length,
        "share": shape.rows // shape.length,
        "total": shape.rows,
        "pieces": tile.pieces,
        "cuts": tile.cuts,
        "width_v": part.width_v,
        "whole_v": shape.width_v,
        "solo": tile.solo,
        "wide_type": "float" if cut.step == 1 else f"vec{cut.step}",
        "many_parts": min(-(-tile.pieces // cut.shares), PARTS_HELD // cut.step),
        "threads": tile.threads,
        "size": info.limits.subgroup_size,
        "subgroup_size": info.limits.subgroup_size,
        "device_exp2": step.problem.dtype in HALVES and heuristics.device_exp2(info),
        "window": step.window,
        "load_position": scalar("position"),
        "positions": count("position"),
        "start": "start" in places,
        "load_start": scalar("start"),
        "starts": count("start"),
        "address_parts": kernel.address(places["parts"]) if "parts" in places else None,
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """How a template reads rows of an operand: ``chunk`` elements a load from ``address`` on, or one by ``load``
    (a function of GLSL indices), ``stride`` apart; ``strides`` of all its dimensions."""

    address: str
    kind: str
    chunk: int
    load: Any
    stride: str
    strides: list[str]

    @classmethod
    def of(cls, kernel: VulkanTemplateKernel, position: int, whole: int) -> Row:
        """Of operand ``position``, whose last dimension is read in chunks that divide ``whole``."""
        operand = kernel.inputs[position]
        along = strides(kernel, position)
        chunk = math.gcd(vector_width(operand, len(along) - 1), whole)
        kind = str(operand.get_dtype()).removeprefix("torch.")
        if chunk * operand.get_dtype().itemsize < 4 or operand.get_dtype() not in (torch.float32, *HALVES):
            chunk = 1
        return cls(_address(kernel, operand), kind, chunk, kernel.operand(position), along[-1], along)


def _plan_step(kernel: VulkanTemplateKernel, step: Step) -> tuple[str, dict[str, Any], Any]:
    info = kernel.device_info
    size, tile, places, problem = info.limits.subgroup_size, step.tile, step.places, step.problem
    values, cut, shape = _common(kernel, step), tile.cut(step.shape, size), step.shape.part(tile.cuts, size)
    kind = str(problem.dtype).removeprefix("torch.")

    def along(name: str) -> list[str]:
        return strides(kernel, places[name]) if name in places else []

    for name in ("key_cache", "value_cache", "parts", "counters"):
        if name in places:
            kernel.written.add(kernel.args.input(kernel.inputs[places[name]].get_name()))
    rotary = int(kernel.inputs[places["cos"]].get_layout().size[-1]) if "cos" in places else 0
    # A load of a pair's halves has no elements of both.
    whole = math.gcd(shape.wide_k, rotary if step.interleaved else rotary // 2)
    rows = {name: Row.of(kernel, places[name], whole) for name in _ROWS if name in places}
    mask = along("mask")
    slopes = Row.of(kernel, places["slopes"], 1) if "slopes" in places else None
    values |= dict.fromkeys(_ROWS) | rows
    lent_step = math.gcd(cut.elements_k, 4)
    keys = _number(problem.keys)
    once = keys is not None and keys <= tile.pieces * cut.granule and tile.solo <= cut.granule
    values |= {
        "combines": step.combines,
        "dtype": problem.dtype,
        "kind": kind,
        "bytes": problem.dtype.itemsize,
        "type_k": _words(shape.wide_k, problem.dtype),
        "type_v": _words(shape.wide_v, problem.dtype),
        "wide_k": shape.wide_k,
        "wide_v": shape.wide_v,
        "unroll": tile.unroll,
        "early": tile.early and _early(step, cut, bool(mask)),
        "ahead": 0 if once else tile.ahead,
        "lent": tile.lent,
        "fences": 1 if heuristics.program_workgroup(info) is None else tile.threads,
        # Whether a piece never has more than a granule of keys: nothing is scaled then.
        "once": once,
        "turns": -(-cut.all_rows // (cut.subgroups * cut.teams)),
        "lent_step": lent_step,
        "lent_type": "float" if lent_step == 1 else f"vec{lent_step}",
        "fresh": tile.fresh and shape.length == 1,
        # So that all invocations have some of the result.
        "many": math.gcd(cut.step, max(cut.all_rows * shape.width_v // tile.threads, 1)),
        "rotary": rotary,
        "interleaved": step.interleaved,
        "eps": number(kernel, step.eps),
        "weight_offset": number(kernel, step.weight_offset),
        "softcap": step.softcap,
        "slopes": slopes is not None,
        "load_slopes": slopes and (lambda index: slopes.load(f"{index} * {slopes.stride}")),
        "load_mask": kernel.operand(places["mask"]) if mask else None,
        "mask_index": "b * {} + h * {} + at * {} + key * {}".format(*mask) if mask else "",
        "new_v_strides": along("v"),
        "k_strides": along("key_cache"),
        "v_strides": along("value_cache"),
        "address_k": _address(kernel, kernel.inputs[places["key_cache"]]),
        "address_v": _address(kernel, kernel.inputs[places["value_cache"]]),
        "address_new_v": _address(kernel, kernel.inputs[places["v"]]),
        "masks_k": distances(1, cut.lanes),
        "masks_lines": distances(cut.lanes, size),
        "counter": None,
    }
    if "counters" in places:
        counters = kernel.address(places["counters"])
        values["counter"] = lambda block: f"Buffer_uint({counters} + uint64_t({block}) * 4ul).d[0]"
    return "attention_step.glsl.jinja", values, problem.batch * problem.groups * cut.blocks * tile.pieces


def _early(step: Step, cut: Cut, masked: bool) -> bool:
    """Whether the first granules lie in the cache and are needed, wherever the new key goes."""
    keys = _number(step.problem.keys)
    reach = step.tile.pieces * cut.granule
    return step.shape.length == 1 and not (step.window or "start" in step.places or masked) and reach <= (keys or 0)


def _words(width: int, dtype: torch.dtype) -> str:
    """GLSL's type of ``width`` neighbouring elements as words of 32 bits."""
    words = width * dtype.itemsize // 4
    return "uint" if words == 1 else f"uvec{words}"


def _plan_combine(kernel: VulkanTemplateKernel, step: Step) -> tuple[str, dict[str, Any], Any]:
    values = _common(kernel, step)
    kernel.operand(step.places["order"])
    return "attention_step_combine.glsl.jinja", values, step.problem.batch * step.problem.groups * values["blocks"]
