"""FlexAttention kept whole: the attention kernels of plain FMA with a user's score and mask functions inside.

Keys that a block mask leaves out are not visited; it counts as what it is made from: blocks that no query sees, blocks
to be judged by the mask function, and blocks of which all is seen.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.utils import ceildiv
from torch._inductor.virtualized import V

from vkinductor.codegen.compat import size_hint
from vkinductor.codegen.template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out, realized
from vkinductor.device.attention import DTYPES, MAX_HEAD
from vkinductor.runtime import context
from vkinductor.runtime.errors import UnsupportedError

from .gradient import VALUE_GRADIENT, plan_fma
from .lowering import fma_values
from .modification import GRADIENT, PLACES, SCORE, Modification
from .problem import Problem, operands, strides
from .tiles import FMA_TILES, FmaTile, backward_tile, fma_tile

aten = torch.ops.aten

# The size of blocks of a mask that has none (torch.nn.attention.flex_attention).
_NO_BLOCKS = 1 << 30
# torch counts these logarithms in powers of two.
_LOG2_E = 1 / math.log(2)


@dataclass(frozen=True)
class Blocks:
    """Which keys of a block mask are visited: ``tables`` (numbers of blocks and lists of them, to be judged and then
    whole ones, if there are any), of ``rows`` queries and ``columns`` keys a block."""

    tables: tuple[Any, ...]
    rows: int
    columns: int


@dataclass(frozen=True)
class Flex:
    """A problem with its functions. ``captured``: the buffers that they read; ``uses``: an expression of the sizes."""

    problem: Problem
    score: Modification
    mask: Modification
    captured: tuple[Any, ...]
    uses: Any


def _served(q: Any, k: Any, v: Any) -> None:
    """Raise UnsupportedError for operands that no kernel takes."""
    dtypes = {x.get_dtype() for x in (q, k, v)}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        names = ", ".join(sorted(str(d) for d in dtypes))
        raise UnsupportedError(f"FlexAttention takes query, key and value of one dtype of {DTYPES}, not {names}")
    widths = [V.graph.sizevars.guard_int(x.get_size()[3]) for x in (q, k, v)]
    if widths[0] != widths[1]:
        raise UnsupportedError(f"FlexAttention: query has heads of {widths[0]}, key of {widths[1]}")
    if max(widths) > MAX_HEAD:
        raise UnsupportedError(f"FlexAttention: heads of {max(widths)} elements; at most {MAX_HEAD} are supported")


def _captured(buffers: Any, device: Any) -> list[Any]:
    """What a function reads, where a kernel on ``device`` can address it; sizes stay as they are."""
    found = []
    for x in buffers:
        if isinstance(x, (int, float, sympy.Expr)):
            found.append(x)
            continue
        if x.get_device() != device and len(x.get_size()):
            raise UnsupportedError(
                f"FlexAttention: score_mod or mask_mod reads a tensor on {x.get_device()}, the operands are on "
                f"{device}: move it there"
            )
        found.append(_fixed(x))
    return found


def _fixed(x: Any) -> Any:
    buffer = laid_out(x)
    return buffer if isinstance(buffer, TensorBox) else TensorBox(buffer)


def _flex(
    q: Any, k: Any, v: Any, score: Any, block_mask: tuple[Any, ...], scale: Any, score_buffers: Any, mask_buffers: Any
) -> Flex:
    _served(q, k, v)
    problem = dataclasses.replace(Problem.of(q, k, v, None, False, scale), mask="function")
    dtype, device = q.get_dtype(), q.get_device_or_error()
    score_buffers, mask_buffers = _captured(score_buffers, device), _captured(mask_buffers, device)
    read = (*score_buffers, *mask_buffers)
    return Flex(
        problem,
        Modification.of(score.graph_module, (SCORE, *PLACES), score_buffers, dtype, device),
        Modification.of(block_mask[-1].graph_module, PLACES, mask_buffers, dtype, device),
        tuple(x for x in read if isinstance(x, TensorBox)),
        sum((sympy.sympify(x) for x in read if not isinstance(x, TensorBox)), sympy.S.Zero),
    )


def _blocks(block_mask: tuple[Any, ...]) -> Blocks | None:
    """The blocks of keys by blocks of queries; None where the mask has none."""
    _, _, number, listed, full_number, full_listed, *rest = block_mask
    rows, columns = (V.graph.sizevars.guard_int(n) for n in rest[-3:-1])
    if min(rows, columns) >= _NO_BLOCKS:
        return None
    tables = (number, listed) if full_number is None else (number, listed, full_number, full_listed)
    return Blocks(tuple(laid_out(x) for x in tables), rows, columns)


def _tile(flex: Flex, blocks: Blocks | None) -> tuple[FmaTile, Blocks | None]:
    """A tile, and the blocks where its rows lie in one; else the mask function alone tells what is seen."""
    info = context.get().info
    tile = fma_tile(info, flex.problem)
    if blocks is None or blocks.rows % tile.bq == 0:
        return tile, blocks
    smaller = [t for t in FMA_TILES if t.bq < tile.bq and blocks.rows % t.bq == 0]
    fitting = [t for t in smaller if t.fits(info, flex.problem.width_v)]
    return (fitting[0], blocks) if fitting else (tile, None)


def _modify(kernel: VulkanTemplateKernel, flex: Flex) -> list[str]:
    """Statements that turn ``score``, of the query ``at`` and ``key``, into what the functions make of it."""
    places = dict(zip(PLACES, ("int(b)", "int(h)", "at", "key"), strict=True))
    lines, (result,) = flex.score.write(kernel, {SCORE: "score", **places})
    masking, (seen,) = flex.mask.write(kernel, places)
    return [*lines, f"score = {result};", "seen = true;", "if (judge) {", *masking, f"seen = {seen};", "}"]


def _table(kernel: VulkanTemplateKernel, place: int, rank: int) -> str:
    """GLSL of the element [b, h, row_block, n] (of so many dimensions) of a block mask's table."""
    terms = [f"{i} * {s}" for i, s in zip(("b", "h", "row_block", "n")[:rank], strides(kernel, place), strict=True)]
    return kernel.operand(place)(" + ".join(terms))


def _plan(
    kernel: VulkanTemplateKernel, flex: Flex, tile: FmaTile, blocks: Blocks | None, places: dict[str, int]
) -> tuple[str, dict[str, Any], Any]:
    problem = flex.problem
    store_lse = kernel.result(places["lse"])
    store_most = kernel.result(places["most"]) if "most" in places else None

    def store(place: str, value: str) -> str:
        lowest = "uintBitsToFloat(0xff800000u)"
        lse = store_lse(place, f"sum == 0.0 ? {lowest} : {_LOG2_E!r} * ({value})")
        return lse if store_most is None else f"{lse} {store_most(place, f'{_LOG2_E!r} * highest[i]')}"

    more = {"store_lse": store, "modify": _modify(kernel, flex), "blocks": None}
    values = fma_values(kernel, problem, tile) | more
    if blocks is not None:
        first = places["tables"]
        tables = [_table(kernel, first + i, rank) for i, rank in enumerate((3, 4, 3, 4)[: len(blocks.tables)])]
        values["blocks"] = {"rows": blocks.rows, "columns": blocks.columns, "tables": tables}
    return "attention_forward.glsl.jinja", values, problem.batch * problem.heads * ceildiv(problem.queries, tile.bq)


def forward(
    q: TensorBox, k: TensorBox, v: TensorBox, score: Any, block_mask: tuple[Any, ...], scale: Any,
    options: dict[str, Any], score_buffers: Any = (), mask_buffers: Any = (),
) -> tuple[TensorBox, TensorBox, TensorBox]:  # fmt: skip
    """torch.ops.higher_order.flex_attention: (out, logarithms of sums, greatest scores), the last two as powers of two.

    Raises:
        UnsupportedError: operands or functions that no kernel takes; the message says which.
    """
    flex = _flex(q, k, v, score, block_mask, scale, score_buffers, mask_buffers)
    tile, blocks = _tile(flex, _blocks(block_mask))
    device, size = q.get_device_or_error(), [*q.get_size()[:3], v.get_size()[3]]
    lse, most = (lowering.empty_strided(q.get_size()[:3], None, dtype=torch.float32, device=device) for _ in range(2))
    also = [realized(lse), *([realized(most)] if options.get("OUTPUT_MAX") else [])]
    inputs = operands(q, k, v)
    places = {name: len(inputs) + i for i, name in zip(range(len(also)), ("lse", "most"), strict=False)}
    inputs += also
    if blocks is not None:
        places["tables"] = len(inputs)
        inputs += blocks.tables
    inputs += [realized(x) for x in flex.captured]
    layout = FixedLayout(device, q.get_dtype(), size, _as(q, size))
    plan = functools.partial(_plan, flex=flex, tile=tile, blocks=blocks, places=places)
    out = VulkanTemplateBuffer(layout, inputs, plan, name="flex_attention", uses=flex.uses, also=also)
    return TensorBox.create(out), lse, most


def _differentiate(kernel: VulkanTemplateKernel, joint: Modification) -> list[str]:
    """Statements that turn ``d``, the gradient of a modified score, into that of the score before, ``plain``."""
    places = dict(zip(PLACES, ("int(b)", "int(h)", "at", "key"), strict=True))
    lines, (result,) = joint.write(kernel, {SCORE: "plain", **places, GRADIENT: "d"})
    return ["{", *lines, f"d = {result};", "}"]


def _plan_backward(
    kernel: VulkanTemplateKernel, flex: Flex, joint: Modification, tile: FmaTile, keys_are_rows: bool
) -> tuple[str, dict[str, Any], Any]:
    problem = dataclasses.replace(flex.problem, mask="")
    template, values, groups = plan_fma(kernel, problem, tile, keys_are_rows)
    values |= {"modify": ["{", *_modify(kernel, flex), "}"], "differentiate": _differentiate(kernel, joint)}
    if keys_are_rows:
        strides_v = [kernel.size(s) for s in kernel.inputs[VALUE_GRADIENT].get_layout().stride]
        values["place_v"] = " + ".join(f"{i} * {s}" for i, s in zip(("b", "hr", "at", "d"), strides_v, strict=True))
    return template, values, groups


def backward(
    q: TensorBox, k: TensorBox, v: TensorBox, out: TensorBox, lse: TensorBox, gradient: TensorBox | None,
    gradient_lse: TensorBox | None, score: Any, joint: Any, block_mask: tuple[Any, ...], scale: Any,
    options: dict[str, Any], score_buffers: Any = (), mask_buffers: Any = (),
) -> tuple[TensorBox, TensorBox, TensorBox, tuple[None, ...]]:  # fmt: skip
    """torch.ops.higher_order.flex_attention_backward: the gradients of q, k and v; none of what the functions read.

    The mask function is asked for every key, whatever the blocks of its mask are.

    Raises:
        UnsupportedError: as of ``forward``, and where a tensor that ``score`` reads requires a gradient.
    """
    flex = _flex(q, k, v, score, block_mask, scale, score_buffers, mask_buffers)
    (results,) = (node.args[0] for node in joint.graph_module.graph.nodes if node.op == "output")
    if any(x is not None for x in results[1 + len(PLACES) :]):
        raise UnsupportedError(
            "FlexAttention: a tensor that score_mod reads requires a gradient, which there is none of on this device: "
            "detach() it"
        )
    dtype, device = q.get_dtype(), q.get_device_or_error()
    names = (SCORE, *PLACES, GRADIENT)
    derived = Modification.of(joint.graph_module, names, _captured(score_buffers, device), dtype, device, used=1)
    ops = lowering.lowerings
    if gradient is None:
        gradient = ops[aten.zeros_like](out)
    product = ops[aten.mul](lowering.to_dtype(gradient, torch.float32), lowering.to_dtype(out, torch.float32))
    delta = ops[aten.sum](product, [-1])
    if gradient_lse is not None:
        delta = ops[aten.sub](delta, ops[aten.mul](gradient_lse, _LOG2_E))
    # Where a row sees nothing, its powers are none of infinity.
    natural = ops[aten.where](ops[aten.eq](lse, -math.inf), math.inf, ops[aten.mul](lse, 1 / _LOG2_E))
    batch = q.get_size()[0]
    sizes = [[batch, *x.get_size()[1:]] for x in (q, k, v)]
    layouts = [FixedLayout(device, dtype, s, _as(x, s)) for x, s in zip((q, k, v), sizes, strict=True)]
    inputs = operands(q, k, v, gradient, natural, delta)
    captured = [realized(x) for x in flex.captured]
    tile = backward_tile(context.get().info, flex.problem)
    plan_of = functools.partial(_plan_backward, flex=flex, joint=derived, tile=tile)
    plan = functools.partial(plan_of, keys_are_rows=False)
    dq = VulkanTemplateBuffer(layouts[0], [*inputs, *captured], plan, name="flex_attention_backward_q", uses=flex.uses)
    dv = lowering.empty_strided(sizes[2], layouts[2].stride, dtype=dtype, device=device)
    also = [realized(dv)]
    plan = functools.partial(plan_of, keys_are_rows=True)
    dk = VulkanTemplateBuffer(
        layouts[1], [*inputs, *also, *captured], plan, name="flex_attention_backward_kv", uses=flex.uses, also=also
    )
    made = [TensorBox.create(dk), dv]
    if not V.graph.sizevars.statically_known_equals(batch, k.get_size()[0]):
        made = [ops[aten.sum](x, [0], True) for x in made]
    return TensorBox.create(dq), made[0], made[1], (None,) * len(score_buffers)


def _as(q: Any, size: list[Any]) -> list[Any]:
    """Strides of a dense tensor of ``size`` with dimensions in the order of those of ``q``, elements of heads last."""
    layout = realized(q).get_layout()
    order = sorted(range(3), key=lambda i: (size_hint(layout.stride[i]), -i))
    made, step = [sympy.S.One] * 4, size[3]
    for i in order:
        made[i], step = step, step * size[i]
    return made
