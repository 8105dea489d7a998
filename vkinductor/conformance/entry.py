"""What conformance checks: an entry is a function of torch with samples of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


class Sample(NamedTuple):
    """The arguments of one call, on the CPU."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """An operator and how it is checked.

    dtypes: those of ``DTYPES`` that the CPU, which is the reference, has it for; gradients: those of them in which it
    has a derivative. make: samples of its arguments in a dtype. reproducible: whether two runs give one result (random
    numbers and uninitialized memory are compared by form alone). tolerances: dtype -> (absolute, relative) where
    torch's own are wider than its usual ones.
    """

    name: str
    operator: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...]
    gradients: frozenset[torch.dtype]
    make: Callable[[torch.dtype], Sequence[Sample]]
    reproducible: bool
    tolerances: dict[torch.dtype, tuple[float, float]]
