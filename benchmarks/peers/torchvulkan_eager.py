"""torchvulkan: a device of PyTorch with shaders for each operator. It takes the name "vulkan" too."""

from __future__ import annotations

from typing import Any

import torch
import torchvulkan

from . import torch_model
from .problems import Arrays


def about() -> str:
    """Package, torch, device."""
    return f"torchvulkan {torchvulkan.__version__}, torch {torch.__version__}, {torchvulkan.get_device_name()}"


def prepare(problem: str, arrays: Arrays) -> Any:
    """Eager, which is all it has; operands stay on the device."""
    return torch_model.prepare(problem, arrays, lambda f: f, torchvulkan.synchronize)
