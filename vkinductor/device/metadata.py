"""Views and other operators that change how memory is looked at and never touch it.

torch's CPU kernels of these work on any tensor and keep the tensor's own key set, so each is redispatched to
the CPU key. Everything else that makes a view (`select`, `slice`, `expand`, ...) is composed from these by
torch itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

# Name in torch's aten library, for operators whose CPU kernel reads and writes metadata alone.
OPERATORS = (
    "as_strided",
    "view",
    "_reshape_alias",
    "unfold",
    "view_as_real",
    "view_as_complex",
    "is_set_to",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
)


def overload(name: str) -> Any:
    """The aten OpOverload called `name`, as in "view" or "set_.source_Tensor"."""
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")


def _on_cpu_key(op: Any) -> Callable[..., Any]:
    redispatch = op.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(_CPU, *args, **kwargs)

    return kernel


def as_strided(tensor: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
    """`aten.as_strided` below autograd: another look at the storage of `tensor`, offset in elements from its
    start."""
    return torch.ops.aten.as_strided.default.redispatch(_CPU, tensor, size, stride, offset)


def register(library: torch.library.Library) -> None:
    """Add the kernels to torch's "aten" library."""
    for name in OPERATORS:
        library.impl(name, _on_cpu_key(overload(name)), "PrivateUse1")
