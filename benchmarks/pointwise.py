"""Elementwise chains of two to six streams over more than 100 MB, and strided, transposed and broadcast ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .cases import DTYPES, Case

TOTAL_BYTES = 192 << 20


def chain(*inputs: torch.Tensor) -> torch.Tensor:
    """All inputs, read once; what a network does between products."""
    result = torch.nn.functional.silu(inputs[0])
    for x in inputs[1:]:
        result = result * x + 0.5
    return result


def cases(quick: bool) -> Iterator[Case]:
    """Chains, then access patterns."""
    total = TOTAL_BYTES // (16 if quick else 1)
    for name, dtype in DTYPES.items():
        for streams in range(2, 7):
            n = total // streams // dtype.itemsize // 1024 * 1024

            def inputs(device: str, n: int = n, count: int = streams - 1, dtype: Any = dtype) -> list[Any]:
                return [torch.randn(n, device=device).to(dtype) for _ in range(count)]

            bytes_ = float(n * streams * dtype.itemsize)
            targets = {"ceiling": 0.97, "CUDA Inductor": 1.0}
            yield Case("pointwise", f"{streams} streams {name}", chain, inputs, bytes_, targets=targets)
        side = 1024 if quick else 6144
        patterns: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], float]] = {
            "transposed": (lambda x, y: x.T * 2 + y, [(side, side), (side, side)], 3.0),
            "strided": (lambda x, y: x[:, ::2] * 2 + y, [(side, 2 * side), (side, side)], 4.0),
            "broadcast row": (lambda x, b: torch.relu(x + b), [(side, side), (side,)], 2.0),
            "broadcast column": (lambda x, b: torch.relu(x + b), [(side, side), (side, 1)], 2.0),
            "permuted copy": (lambda x: x.permute(1, 2, 0).contiguous(), [(side // 64, 64, side)], 2.0),
        }
        for pattern, (function, shapes, times) in patterns.items():

            def made(device: str, shapes: Any = shapes, dtype: Any = dtype) -> list[Any]:
                return [torch.randn(shape, device=device).to(dtype) for shape in shapes]

            moved = times * side * side * dtype.itemsize
            yield Case("pointwise", f"{pattern} {name}", function, made, moved, targets={"CUDA Inductor": 0.9})
