"""Connectionist temporal classification: the rows of the lattice, a workgroup a sequence, one step after another."""

from __future__ import annotations

import functools
from typing import Any

import sympy
from torch._inductor.ir import FixedLayout, FlexibleLayout, TensorBox
from torch._inductor.utils import upcast_compute_type
from torch._inductor.virtualized import V

from vkinductor.device.ctc import MAX_STATES
from vkinductor.runtime.errors import UnsupportedError

from .template_kernel import VulkanTemplateBuffer, VulkanTemplateKernel, laid_out
from .types import glsl_type

# Invocations of a workgroup; each has several states of a row where there are more.
_LANES = 256


def _plan(kernel: VulkanTemplateKernel, blank: Any, backwards: bool, capacity: int) -> tuple[str, dict[str, Any], Any]:
    log_probs, targets, lengths, labels = kernel.inputs
    count, steps, states = kernel.node.get_size()
    register = glsl_type(upcast_compute_type(log_probs.get_dtype())).register
    lanes = min(_LANES, capacity, kernel.device_info.limits.max_workgroup_invocations)
    context = {
        "register": register,
        "suffix": "_f64" if register == "double" else "",
        "backwards": backwards,
        "capacity": capacity,
        "lanes": lanes,
        "blank": kernel.size(blank),
        "count": kernel.size(count),
        "steps": kernel.size(steps),
        "states": kernel.size(states),
        "load": kernel.operand(0),
        "strides": [kernel.size(s) for s in log_probs.get_layout().stride],
        "load_target": kernel.operand(1),
        "target_strides": [kernel.size(s) for s in targets.get_layout().stride],
        "load_length": kernel.operand(2),
        "length_stride": kernel.size(lengths.get_layout().stride[0]),
        "load_labels": kernel.operand(3),
        "labels_stride": kernel.size(labels.get_layout().stride[0]),
    }
    return "ctc.glsl.jinja", context, count


def states(
    log_probs: TensorBox, targets: TensorBox, lengths: TensorBox, labels: TensorBox, blank: Any, backwards: bool
) -> TensorBox:
    """vkinductor.ctc_states.

    Raises:
        UnsupportedError: a row has more than MAX_STATES states.
    """
    operands = [laid_out(x) for x in (log_probs, targets, lengths, labels)]
    steps, count, _ = log_probs.get_size()
    size = [count, steps, 2 * targets.get_size()[1] + 1]
    fits = V.graph.sizevars.guard_or_false
    capacity = next((c for c in (64, 512, MAX_STATES) if fits(sympy.Le(size[2], c))), None)
    if capacity is None:
        raise UnsupportedError(f"ctc_loss: targets of {targets.get_size()[1]} labels; {MAX_STATES // 2 - 1} fit")
    layout = FixedLayout(
        log_probs.get_device_or_error(), log_probs.get_dtype(), size, FlexibleLayout.contiguous_strides(size)
    )
    plan = functools.partial(_plan, blank=blank, backwards=backwards, capacity=capacity)
    return TensorBox.create(VulkanTemplateBuffer(layout, operands, plan, name="ctc", fuses=False))
