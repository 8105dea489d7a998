"""Depthwise convolutions: every channel with a kernel of its own, so there is no product to make a matrix of.

An invocation computes neighbours along the last dimension of the image; with channels last it does so for as many
channels as one load takes. The result lies as x does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv, sympy_product
from torch._inductor.virtualized import V

from vkinductor.runtime import context

from .alignment import divides, vector_width
from .convolution_products import Window, settled
from .heuristics import convolution_products
from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel
from .types import glsl_type
from .vectors import elements, load_type

aten = torch.ops.aten

# Invocations a workgroup; values of x that one keeps in registers.
_WORKGROUP, _MOST_VALUES = 128, 112


def depthwise(
    x: TensorBox, weight: TensorBox, window: Window, sizes: Sequence[Any], dtype: torch.dtype
) -> TensorBox | None:
    """[B, C, D...] and [C, 1, K...] in as many groups -> [B, C, *sizes] in ``dtype``.

    None where the device or the sizes keep to the general kernel.
    """
    if not convolution_products(context.get().info):
        return None
    if x.get_dtype() not in (torch.float16, torch.bfloat16, torch.float32):
        return None
    x, weight = settled(x), settled(weight)
    device: Any = x.get_device()
    batch, channels = x.get_size()[:2]
    known = V.graph.sizevars.statically_known_equals
    last = x.get_layout().stride[1] == 1 and not known(channels, 1) and len(sizes) > 0
    width = vector_width(x, 1) if last else 1
    columns = functools.partial(_columns, window)
    at_once = next((n for n in (8, 4, 2, 1) if n <= (4 if last else 8) and columns(n) * width <= _MOST_VALUES), 0)
    if not at_once or prod(window.taps) > 1024:
        return None
    shape = [batch, *sizes, channels] if last else [batch, channels, *sizes]
    layout = FixedLayout(device, dtype, shape, FlexibleLayout.contiguous_strides(shape))
    make = functools.partial(_plan, window=window, sizes=tuple(sizes), last=last, width=width, at_once=at_once)
    uses = sum(x.get_size(), sympy.S.Zero)
    made = TensorBox.create(VulkanTemplateBuffer(layout, [x, weight], make, name="depthwise", uses=uses))
    dims = len(sizes)
    return lowering.lowerings[aten.permute](made, [0, dims + 1, *range(1, dims + 1)]) if last else made


def _columns(window: Window, at_once: int) -> int:
    """Neighbours of x that ``at_once`` outputs take."""
    return (at_once - 1) * window.stride[-1] + (window.taps[-1] - 1) * window.dilation[-1] + 1


def _plan(
    kernel: VulkanTemplateKernel,
    window: Window,
    sizes: tuple[Any, ...],
    last: bool,
    width: int,
    at_once: int,
) -> tuple[str, dict[str, Any], Any]:
    x = kernel.inputs[0]
    batch, channels, *space = x.get_size()
    one = V.graph.sizevars.statically_known_equals
    size, dtype = kernel.size, x.get_dtype()
    xs, ws = (
        [size(0 if one(n, 1) else s) for n, s in zip(o.get_size(), o.get_layout().stride, strict=True)]
        for o in kernel.inputs
    )
    rows = zip(space, sizes, xs[2:], ws[2:], window.taps, window.stride, window.padding, window.dilation, strict=True)
    kind = load_type(dtype, width)
    values = {
        "workgroup": _WORKGROUP,
        "last": last,
        "width": width,
        "at_once": at_once,
        "columns": _columns(window, at_once),
        "axes": [
            {"size": size(n), "out": size(o), "x": a, "w": b, "taps": t, "step": s, "padding": p, "dilation": d}
            for n, o, a, b, t, s, p, d in rows
        ],
        "outer_taps": prod(window.taps[:-1]),
        "batch": size(batch),
        "channels": size(channels),
        "x_batch": xs[0],
        "x_channel": xs[1],
        "w_channel": ws[0],
        "x_address": kernel.address(0),
        "load_w": kernel.operand(1),
        "x_type": kind,
        "x_elements": elements(dtype, width, "raw"),
        "nbytes": dtype.itemsize,
        "accumulator": "float",
        "wide": last and width * dtype.itemsize == 16 and divides(width, channels),
        "half": glsl_type(torch.float16).storage,
    }
    items = batch * sympy_product(sizes[:-1]) * ceildiv(sizes[-1], at_once) * (channels // width if last else channels)
    return "depthwise.glsl.jinja", values, ceildiv(items, _WORKGROUP)
