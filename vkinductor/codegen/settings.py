"""Inductor settings that every graph of this device is compiled with."""

from __future__ import annotations

from typing import Any

from torch._inductor import config

FIXED: dict[str, Any] = {
    "triton.cudagraphs": False,
    "cpp_wrapper": False,
    "coordinate_descent_tuning": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "layout_optimization": False,
    # Every kernel of the device has one range (scheduling.py): the analysis that chooses tilings, 5 % of compiling, is
    # for nothing.
    "triton.coalesce_tiling_analysis": False,
}

if not hasattr(config, "loop_reindexing_after_fusion"):
    # Schedulers without it (torch 2.11) compare the accesses of a template with those of a 3-D epilogue before either
    # is normalized, and do not fuse them: let them normalize first.
    FIXED["loop_ordering_after_fusion"] = False
