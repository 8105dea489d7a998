"""Reductions of rows that stay in registers, by a second pass over these: cheaper or more exact than one pass.

Each function takes the kernel, the dtype of the row and its element, and returns what Inductor's reduction of that name
does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import heuristics
from .operands import as_dtype
from .reductions import greatest_number, reduction
from .types import glsl_type, literal


def _sum(kernel: Any, dtype: torch.dtype, text: str) -> str:
    rule = reduction("sum", dtype, dtype, torch.int32, kernel.layout.elements, kernel.layout.step)
    return str(kernel.accumulate(rule, [text])[0])


def _variance(kernel: Any, dtype: torch.dtype, value: Any) -> tuple[Any, Any, Any]:
    """(mean, sum of squared deviations, weight): no division an element."""
    element, weight = as_dtype(value, dtype), literal(float(kernel.features.reduction_numel), dtype)
    mean = kernel.row_value(f"{_sum(kernel, dtype, element)} / {weight}", dtype)
    kernel.cut_row([])
    deviation = kernel.cse.generate(kernel.compute, f"({element} - {mean})", dtype=dtype, shape=())
    squares = kernel.row_value(_sum(kernel, dtype, f"{deviation} * {deviation}"), dtype)
    return mean, squares, kernel.row_value(weight, dtype)


def _softmax(kernel: Any, dtype: torch.dtype, value: Any) -> tuple[Any, Any]:
    """(maximum, sum of exponentials less it); NaN: see online_softmax.py."""
    element = as_dtype(value, dtype)
    top = kernel.row_value(kernel.accumulate(greatest_number(dtype), [element])[0], dtype)
    kernel.cut_row([])
    exact, near = ("vk_exp_f64",) * 2 if dtype == torch.float64 else ("vk_exp", "vk_exp_near")
    if dtype == torch.float32 and not kernel.features.contains_op("exp") and heuristics.device_exp2(kernel.device_info):
        near = "vk_exp_in_sum"  # all that is made of the powers is their sum
    difference = kernel.cse.generate(kernel.compute, f"({element} - {top})", dtype=dtype, shape=())
    power = kernel.cse.generate(kernel.compute, f"{near}({difference})", dtype=dtype, shape=())
    kernel.cse.put(f"{glsl_type(dtype).register} {exact}({difference})", power)  # what follows takes the same
    return top, kernel.row_value(_sum(kernel, dtype, str(power)), dtype)


IN_TWO_PASSES: dict[str, Callable[[Any, torch.dtype, Any], Any]] = {
    "welford_reduce": _variance,
    "online_softmax_reduce": _softmax,
}
