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


def _native_layer_norm(
    x: torch.Tensor, shape: Any, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """In float32 where x is half precision: torch's composition rounds between normalisation and scale.

    All results have x's dtype, as the CPU's have, which also runs the backward where nothing compiles.
    """
    op, key = torch.ops.aten.native_layer_norm.default, torch._C.DispatchKey.Lazy  # a key that has the composition
    half = x.dtype in (torch.float16, torch.bfloat16)
    wide, weight, bias = (t.float() if half and t is not None else t for t in (x, weight, bias))
    result, mean, rstd = op.redispatch(torch._C.DispatchKeySet(key), wide, shape, weight, bias, eps)
    return result.to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


def _tensor_split(x: torch.Tensor, sections: torch.Tensor, dim: int = 0) -> Any:
    """Splits at positions that lie on the device: they are read, since they decide about shapes."""
    return torch.tensor_split(x, sections.tolist(), dim)


def register(library: torch.library.Library) -> None:
    """Add the kernels to torch's "aten" library."""
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("_to_copy", _to_copy, "PrivateUse1")
    library.impl("native_layer_norm", _native_layer_norm, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        library.impl("tensor_split.tensor_indices_or_sections", _tensor_split, key)
