"""argmax, argmin and max and min with index of few long rows: in parts, which fill a GPU that one row leaves idle.

Inductor splits no reduction that has an index. Here a part of a row leaves its best value and where in the part that
is; a second kernel finds the best part. Parts are in order, so that of equal values the first wins in both. Where only
the place is asked for, of floats that lie in memory, the last workgroup of a row to come does what the second kernel
does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.ir import FixedLayout, Pointwise, TensorBox
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V, ops

from . import heuristics
from .alignment import vector_width
from .compat import size_hint
from .counters import counters, turn_bytes
from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out, realized
from .types import is_float
from .vectors import elements, load_type, narrowest

aten = torch.ops.aten

# Invocations of a workgroup that looks for a place alone.
_THREADS = 256


def parts_of(size: Sequence[Any], dim: int) -> int:
    """Into how many parts the rows along ``dim`` of a tensor are cut; 1: they are not."""
    length, others = size[dim], [*size[:dim], *size[dim + 1 :]]
    if not isinstance(length, (int, sympy.Integer)) or any(s != 1 for s in size[dim + 1 :]):
        return 1
    return heuristics.parts_with_places(int(length), max(1, size_hint(sympy_product(others))))


def _identity(dtype: torch.dtype, largest: bool) -> Any:
    if is_float(dtype):
        return float("-inf") if largest else float("inf")
    if dtype == torch.bool:
        return not largest
    return torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max


def _in_parts(x: TensorBox, dim: int, parts: int, largest: bool) -> TensorBox:
    """``x`` with its dimension ``dim`` as two, the last part filled up with what no element is worse than."""
    size = list(x.get_size())
    each = -(-int(size[dim]) // parts)
    missing = parts * each - int(size[dim])
    if missing:
        pad = [0, 0] * (len(size) - 1 - dim) + [0, missing]
        x = lowering.lowerings[aten.constant_pad_nd.default](x, pad, _identity(x.get_dtype(), largest))
    return lowering.lowerings[aten.view.default](x, [*size[:dim], parts, each, *size[dim + 1 :]])


def _place(part: TensorBox, places: TensorBox, dim: int, each: int) -> TensorBox:
    """The place in the row, from the number of the best ``part`` [..., 1, ...] and the ``places`` in parts."""
    load_part, load_place = part.make_loader(), places.make_loader()
    parts = places.get_size()[dim]

    def inner(index: Sequence[Any]) -> Any:
        which = load_part(index)
        at = ops.indirect_indexing(which, parts, check=False)
        within = load_place([*index[:dim], at, *index[dim + 1 :]])
        return ops.add(ops.mul(which, ops.constant(each, torch.int64)), within)

    device = part.get_device_or_error()
    return Pointwise.create(device=device, dtype=torch.int64, inner_fn=inner, ranges=list(part.get_size()))


def _best(x: TensorBox, dim: int, parts: int, keepdim: bool, largest: bool) -> tuple[TensorBox, TensorBox]:
    """(value, index) of the best along ``dim``."""
    arg, extreme = (aten.argmax, aten.amax) if largest else (aten.argmin, aten.amin)
    place_of, value_of = lowering.lowerings[arg.default], lowering.lowerings[extreme.default]
    cut = _in_parts(x, dim, parts, largest)
    places, values = place_of(cut, dim + 1, False), value_of(cut, [dim + 1], False)
    part = place_of(values, dim, True)
    place = _place(part, places, dim, int(cut.get_size()[dim + 1]))
    value = value_of(values, [dim], keepdim)
    return value, place if keepdim else lowering.lowerings[aten.squeeze.dim](place, dim)


def _place_alone(x: TensorBox, dim: int, parts: int, keepdim: bool, largest: bool) -> TensorBox | None:
    """The same place by one kernel; None where it is not for ``x``."""
    sizes = [V.graph.sizevars.simplify(s) for s in x.get_size()]
    known = all(isinstance(s, (int, sympy.Integer)) for s in sizes)
    if x.get_dtype() not in (torch.float32, torch.float16, torch.bfloat16) or not known:
        return None
    # What is computed is better computed in the kernels that look at it.
    if dim != len(sizes) - 1 or 0 in sizes or not ir.is_storage_and_layout(x):
        return None
    n, rows = int(sizes[dim]), int(sympy_product(sizes[:dim]))
    operand = laid_out(lowering.lowerings[aten.view.default](x, [rows, n]))
    device, layout = x.get_device_or_error(), operand.get_layout()
    if not all(isinstance(s, (int, sympy.Integer)) for s in layout.stride) or layout.stride[1] != 1:
        return None
    bests = realized(lowering.empty_strided([rows, parts], None, dtype=torch.int64, device=device))
    also = [bests, counters(rows, device)]
    plan = functools.partial(_plan, parts=parts, largest=largest)
    of_rows = FixedLayout(device, torch.int64, [rows], [1])
    node = VulkanTemplateBuffer(of_rows, [operand, *also], plan, name="argmax" if largest else "argmin", also=also)
    shape = [*sizes[:dim], 1] if keepdim else sizes[:dim]
    return lowering.lowerings[aten.view.default](TensorBox.create(node), shape)


def _plan(kernel: VulkanTemplateKernel, parts: int, largest: bool) -> tuple[str, dict[str, Any], Any]:
    x, info = kernel.inputs[0], kernel.device_info
    for place in (1, 2):
        kernel.written.add(kernel.args.input(kernel.inputs[place].get_name()))
    # Calls that share nothing else do not wait for each other's counters: 4 rows of 128256 halves take 0.9 us instead
    # of 7.2, one of a million 1.2 instead of 8.1 (H200).
    kernel.takes_turns(2, turn_bytes(int(x.get_size()[0])))
    dtype, (rows, n) = x.get_dtype(), (int(s) for s in x.get_size())
    width = narrowest(dtype, min(8, vector_width(x, 1)))
    limit = min(info.limits.max_workgroup_invocations, info.limits.max_workgroup_size[0])
    values = {
        "threads": min(_THREADS, limit),
        "tiles": parts,
        # Whole loads.
        "each": -(-n // (parts * width)) * width,
        "rows": rows,
        "n": n,
        "address": kernel.address(0),
        "pitch": int(x.get_layout().stride[0]) * dtype.itemsize,
        "nbytes": dtype.itemsize,
        "width": width,
        "type": load_type(dtype, width),
        "elements": functools.partial(elements, dtype, width),
        "largest": largest,
        "best": {"parts": kernel.address(1), "counters": kernel.address(2)},
    }
    return "long_places.glsl.jinja", values, rows * parts


def _applies(x: Any, dim: Any) -> tuple[int, int]:
    """(dimension, parts)."""
    device, size = x.get_device(), x.get_size()
    if device is None or device.type != "vulkan" or not size or not isinstance(dim, (int, sympy.Integer)):
        return 0, 1
    dim = int(dim) % len(size)
    return dim, parts_of(size, dim)


def places(original: Callable[..., Any], largest: bool) -> Callable[..., Any]:
    """argmax or argmin around Inductor's lowering."""

    @functools.wraps(original)
    def lower(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        whole = dim is None and len(x.get_size()) == 1
        where, parts = _applies(x, 0 if whole else dim)
        if parts == 1:
            return original(x, dim, keepdim)
        alone = _place_alone(x, where, parts, keepdim, largest)
        return _best(x, where, parts, keepdim, largest)[1] if alone is None else alone

    return lower


def values_and_places(original: Callable[..., Any], largest: bool) -> Callable[..., Any]:
    """max or min along a dimension around Inductor's lowering."""

    @functools.wraps(original)
    def lower(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        where, parts = _applies(x, dim)
        return original(x, dim, keepdim) if parts == 1 else _best(x, where, parts, keepdim, largest)

    return lower
