"""Operators that torch composes for every device in a way that this one cannot follow.

Pinned memory: torch asks the device for an allocator, which one made in Python cannot give. Uploads go through staging
buffers anyway, so pinning leaves a tensor as it is. Positions of splits: torch wants them on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch


def _pin_memory(x: torch.Tensor, device: Any = None) -> torch.Tensor:
    """`tensor.pin_memory()`, also DataLoader's: the tensor itself unless a CUDA device can pin."""
    if torch.cuda.is_available():
        return torch.empty_like(x, pin_memory=True).copy_(x)
    return x


def _to_copy(
    x: torch.Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> torch.Tensor:
    """`tensor.to` of a device tensor. torch's own pins the target of a copy to the CPU that need not block."""
    memory_format = torch.preserve_format if memory_format is None else memory_format
    made = torch.empty_like(x, dtype=dtype, layout=layout, device=device, memory_format=memory_format)
    return made.copy_(x)


def _tensor_split(x: torch.Tensor, sections: torch.Tensor, dim: int = 0) -> Any:
    """Splits at positions that lie on the device: they are read, since they decide about shapes."""
    return torch.tensor_split(x, sections.tolist(), dim)


def register(library: torch.library.Library) -> None:
    """Add the kernels to torch's "aten" library."""
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("_to_copy", _to_copy, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        library.impl("tensor_split.tensor_indices_or_sections", _tensor_split, key)
