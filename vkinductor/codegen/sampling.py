"""Drawing tokens: a kernel that looks at slices of the rows of logits, and one with a workgroup a row that chooses.

No row is sorted. What the slices leave (see `_words`) leads the second kernel to the few logits that matter.
"""

from __future__ import annotations

import functools
from typing import Any

import sympy
import torch
from torch._inductor import lowering
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import ceildiv
from torch._inductor.virtualized import V

from vkinductor.runtime.deviceinfo import DeviceInfo
from vkinductor.runtime.errors import UnsupportedError

from . import heuristics
from .alignment import vector_width
from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out
from .vectors import elements, load_type, narrowest

aten = torch.ops.aten

# A slice: so many lanes, each with neighbouring logits. 63 workgroups then share a row of 128,256.
SLICE_LANES, CHUNK = 128, 16
SLICE = SLICE_LANES * CHUNK

# Bins of 1/8 of a unit of logit / temperature: weights down to exp(-16) of the best's.
BINS = 128

# Counts are floats where they are added up.
LONGEST = 1 << 24


def _words() -> int:
    """Words that a slice leaves: best logit, its index, sum of weights; the best of each lane; counts and sums of bins."""
    return 3 + SLICE_LANES + 2 * BINS


def _lanes(info: DeviceInfo) -> int:
    """Invocations of the second kernel, at least BINS: every device runs that many."""
    most = int(heuristics.forced("sample_lanes") or (BINS if info.kind == "cpu" else 512))
    limit = min(info.limits.max_workgroup_invocations, info.limits.max_workgroup_size[0])
    while most > max(limit, BINS):
        most //= 2
    return most


def _capacity(info: DeviceInfo) -> int:
    """Logits that the second kernel sorts: 8 bytes each in shared memory, beside which it has up to 6 KiB."""
    forced = heuristics.forced("sample_capacity")
    if forced is not None:
        return int(forced)
    return next((n for n in (4096, 2048) if 8 * n + 6144 <= info.limits.max_shared_memory), 1024)


def _common(kernel: VulkanTemplateKernel) -> dict[str, Any]:
    logits, temperature = kernel.inputs[:2]
    rows, length = logits.get_size()
    return {
        "rows": kernel.size(rows),
        "length": kernel.size(length),
        "load": kernel.operand(0),
        "strides": [kernel.size(s) for s in logits.get_layout().stride],
        "load_temperature": kernel.operand(1),
        "temperature_stride": kernel.size(temperature.get_layout().stride[0]),
        "slice": SLICE,
        "slice_lanes": SLICE_LANES,
        "chunk": CHUNK,
        "bins": BINS,
        "words": _words(),
    }


def _plan_slices(kernel: VulkanTemplateKernel) -> tuple[str, dict[str, Any], Any]:
    logits = kernel.inputs[0]
    dtype = logits.get_dtype()
    width = narrowest(dtype, min(CHUNK, vector_width(logits, 1)))
    context = _common(kernel) | {
        "lanes": SLICE_LANES,
        "width": width,
        "words_type": load_type(dtype, width),
        "address": kernel.address(0),
        "nbytes": dtype.itemsize,
        "elements": elements(dtype, width, "words"),
    }
    rows, slices, _ = kernel.node.get_size()
    return "sample_slices.glsl.jinja", context, rows * slices


def _plan_draw(kernel: VulkanTemplateKernel) -> tuple[str, dict[str, Any], Any]:
    context = _common(kernel) | {
        "lanes": _lanes(kernel.device_info),
        "capacity": _capacity(kernel.device_info),
        "load_words": kernel.operand(5),
    }
    for position, name in ((2, "uniform"), (3, "top_k"), (4, "top_p")):
        context[f"load_{name}"] = kernel.operand(position)
        context[f"{name}_stride"] = kernel.size(kernel.inputs[position].get_layout().stride[0])
    return "sample_draw.glsl.jinja", context, kernel.node.get_size()[0]


def sample(
    logits: TensorBox, uniform: TensorBox, temperature: TensorBox, top_k: TensorBox, top_p: TensorBox
) -> TensorBox:
    """vkinductor.sample.

    Raises:
        UnsupportedError: a row has LONGEST logits or more.
    """
    rows, length = logits.get_size()
    if not V.graph.sizevars.guard_or_false(sympy.Lt(length, LONGEST)):
        raise UnsupportedError(f"sample: rows of {length} logits; fewer than {LONGEST} are supported")
    parameters = [_of_rows(x, rows) for x in (temperature, uniform, top_k, top_p)]
    operands = [laid_out(x) for x in (logits, *parameters)]
    device = logits.get_device_or_error()
    size = [rows, ceildiv(length, SLICE), _words()]
    layout = FixedLayout(device, torch.int32, size, FlexibleLayout.contiguous_strides(size))
    slices = TensorBox.create(
        VulkanTemplateBuffer(layout, operands[:2], _plan_slices, name="sample_slices", fuses=False)
    )
    layout = FixedLayout(device, torch.int64, [rows, sympy.S.One], [sympy.S.One, sympy.S.One])
    operands.append(laid_out(slices))
    return TensorBox.create(VulkanTemplateBuffer(layout, operands, _plan_draw, name="sample", uses=length))


def _of_rows(x: Any, rows: Any) -> Any:
    """A parameter [rows], [1] or [] as one of each row, without a copy."""
    flat = lowering.lowerings[aten.view.default](x, [1]) if not x.get_size() else x
    return lowering.lowerings[aten.expand.default](flat, [rows])
