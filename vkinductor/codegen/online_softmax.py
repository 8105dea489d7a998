"""Softmax over long rows in two passes instead of three: maximum and sum together, then the result.

Inductor has the rewrite and asks the device's name whether to use it; this gives our own answer. Rows that a
workgroup keeps in registers are read once either way, and kernel.py computes both in two passes over these; knowing
that the two belong together saves it looking for NaN in the maximum, where the sum has them. A CPU driver is bound by
its arithmetic, of which the online form has more.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .heuristics import device_reads_dominate, longest_row_in_registers


def wanted(match: Any) -> bool:
    """Whether the softmax that ``match`` found should become an online one."""
    x = match.kwargs["x"].meta["val"]
    if x.device.type != "vulkan" or not x.dtype.is_floating_point or not x.dim() or not device_reads_dominate():
        return False
    dim = _dims(match)
    row = 1
    for d in dim if isinstance(dim, (list, tuple)) else (dim,):
        row = row * x.shape[d]
    return not isinstance(row, int) or row > longest_row_in_registers() or _sum_decides(match)


def _sum_decides(match: Any) -> bool:
    """Whether all that is made of the maximum is made of the sum, too: then a NaN need not show in the maximum."""
    aten = torch.ops.aten
    found = {node.target: node for node in match.nodes}
    top, total = found.get(aten.amax.default), found.get(aten.sum.dim_IntList)
    if top is None or total is None:
        return False

    def decided(node: Any) -> bool:
        if node is total:
            return True
        if node.target == aten.div.Tensor:
            return node.args[1] is total
        return node.target == aten.sub.Tensor and getattr(node.args[1], "target", None) == aten.log.default

    differences = [*top.users]
    powers = [node for difference in differences for node in difference.users if node.target == aten.exp.default]
    ends = [node for difference in differences for node in difference.users if node not in powers]
    ends += [node for power in powers for node in power.users]
    return all(d.target == aten.sub.Tensor and d.args[1] is top for d in differences) and all(map(decided, ends))


def _dims(match: Any) -> Any:
    """The dimensions reduced over: the pattern's own argument, or (some torch versions keep it out of the match)
    that of the maximum it found."""
    if "dim" in match.kwargs:
        return match.kwargs["dim"]
    return next((n.args[1] for n in match.nodes if "amax" in str(n.target) and len(n.args) > 1), -1)


def register() -> None:
    """Answer for this device where Inductor asks whether to use the rewrite. Idempotent.

    Inductor takes the question along when it loads its passes, at the first graph it compiles: after a CPU graph
    was compiled in the process this comes too late, and softmax keeps its three passes.
    """
    from torch._inductor.fx_passes import post_grad

    original = post_grad.prepare_softmax_extra_check
    if getattr(original, "vkinductor", False):
        return

    @functools.wraps(original)
    def check(match: Any) -> bool:
        if match.kwargs["x"].meta["val"].device.type == "vulkan":
            return wanted(match)
        return bool(original(match))

    check.vkinductor = True  # type: ignore[attr-defined]
    post_grad.prepare_softmax_extra_check = check
