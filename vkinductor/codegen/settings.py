"""Inductor settings that every graph of this device is compiled with."""

from __future__ import annotations

from typing import Any

FIXED: dict[str, Any] = {
    "triton.cudagraphs": False,
    "cpp_wrapper": False,
    "coordinate_descent_tuning": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "layout_optimization": False,
}
