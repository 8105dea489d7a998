"""Softmax over long rows in two passes instead of three: maximum and sum together, then the result.

Inductor has the rewrite and asks the device's name whether to use it; this gives our own answer. Rows that a
workgroup keeps in registers are read once either way, and there the plain form is the more exact one. A CPU driver
is bound by its arithmetic, of which the online form has more.
"""

from __future__ import annotations

import functools
from typing import Any

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
    return not isinstance(row, int) or row > longest_row_in_registers()


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
