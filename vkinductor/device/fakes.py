"""What fake tensors of the device claim where torch's own rule asks for a library that the device does not have.

Convolutions: torch asks cuDNN's rule of CUDA tensors and says "contiguous" of every device that is not built in. Here
the rule is cuDNN's, too: results are channels last where the image or the weight is. Compiled code gives its results
the strides that fakes have, and eager operators are compiled, so this decides what users see.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from vkinductor.device.registry import DEVICE_NAME

_OPERATORS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


def install() -> None:
    """Put the rule around torch's for convolutions and their gradients. Idempotent."""
    from torch._subclasses import fake_impls

    for op in _OPERATORS:
        original = fake_impls.op_implementations_dict[op]
        if not getattr(original, "vkinductor", False):
            fake_impls.op_implementations_dict[op] = _around(original)


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def convolution(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(fake_mode, func, *args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        bound = {**dict(zip(names, args, strict=False)), **kwargs}
        if bound["input"].device.type != DEVICE_NAME:
            return result
        with fake_mode:
            laid_out = memory_format(bound["input"], bound["weight"])
            if isinstance(result, torch.Tensor):
                return result.to(memory_format=laid_out)
            # The gradients of image and weight; that of the bias has one dimension.
            return (*(g if g is None else g.to(memory_format=laid_out) for g in result[:2]), *result[2:])

    convolution.vkinductor = True  # type: ignore[attr-defined]
    return convolution


def memory_format(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """How the results of a convolution lie: channels last where ``x`` or ``weight`` does."""
    found = (torch._prims_common.suggest_memory_format(t) for t in (x, weight))
    return next((f for f in found if f is not torch.contiguous_format), torch.contiguous_format)
