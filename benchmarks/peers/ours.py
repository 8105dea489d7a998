"""vkinductor."""

from __future__ import annotations

from typing import Any

import torch

import vkinductor

from . import torch_model
from .problems import Arrays


def about() -> str:
    """Package, driver."""
    info = vkinductor.device_info()
    return f"torch {torch.__version__}, {info.name}, {info.driver_info}"


def prepare(problem: str, arrays: Arrays) -> Any:
    """Compiled; operands stay on the device."""
    return torch_model.prepare(
        problem, arrays, lambda f: torch.compile(f, backend="vulkan", dynamic=False), vkinductor.synchronize
    )
