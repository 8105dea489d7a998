"""Matrix products: square ones in both layouts, with an epilogue, without reduced precision, batched, and thin ones; of
8-bit integers, and with weights that are kept in 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .cases import DTYPES, Case

SQUARE = (1024, 2048, 4096, 8192)
THIN = ((16, 4096, 4096), (64, 4096, 4096), (256, 4096, 4096), (16, 4096, 16384), (128, 4096, 16384))


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[M, K] @ [K, N]."""
    return a @ b


def fused(a: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """A linear layer with bias, GELU and residual."""
    return F.gelu(F.linear(a, w, bias)) + residual


def quantised(a: torch.Tensor, w: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """A linear layer of int8 operands with a scale for each of their rows."""
    return (torch._int_mm(a, w.t()) * rows * columns).to(torch.float16)


def weights_only(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A linear layer whose weights are kept in int8."""
    return F.linear(x, w.to(x.dtype)) * scales


def eights(device: str, *shape: int) -> torch.Tensor:
    """Any 8-bit integers."""
    return torch.randint(-128, 128, shape, dtype=torch.int8).to(device)


def integers(quick: bool) -> Iterator[Case]:
    """Products of 8-bit integers beside torch._int_mm, and weights of 8 bits beside what torch makes of them."""

    def linear(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(a, w.t())

    for size in (256,) if quick else (2048, 4096, 8192):
        flops, nbytes = 2.0 * size**3, float(2 * size * size)

        def operands(device: str, size: int = size) -> list[Any]:
            return [eights(device, size, size), eights(device, size, size)]

        def scaled(device: str, size: int = size) -> list[Any]:
            scales = [torch.rand(*shape).to(device) / 4096 for shape in ((size, 1), (size,))]
            return [eights(device, size, size), eights(device, size, size), *scales]

        label = f"{size}x{size}x{size} int8"
        yield Case("gemm", f"linear {label}", linear, operands, nbytes + 4 * size * size, flops)
        yield Case("gemm", f"quantised {label}", quantised, scaled, nbytes + 2 * size * size, flops)
    for m, n, k in ((1, 256, 256),) if quick else ((1, 4096, 4096), (1, 14336, 4096), (8, 14336, 4096)):

        def weights(device: str, m: int = m, n: int = n, k: int = k) -> list[Any]:
            x = random(device, torch.float16, m, k)
            return [x, eights(device, n, k), random(device, torch.float16, n)]

        yield Case("gemm", f"weights {m}x{n}x{k} int8", weights_only, weights, n * k + 2 * m * (n + k), 2.0 * m * n * k)


def random(device: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Values that keep sums of thousands of products within float16."""
    return (torch.randn(shape, device=device) * 0.1).to(dtype)


def cases(quick: bool) -> Iterator[Case]:
    """Ours beside cuBLAS (which CUDA's eager mode and its Inductor call)."""

    def problem(kind: str, m: int, n: int, k: int, name: str, goal: dict[str, float], batch: int = 0) -> Case:
        dtype = DTYPES[name]
        head = (batch,) if batch else ()

        def inputs(device: str) -> list[Any]:
            a = random(device, dtype, *head, m, k)
            if kind == "product":
                return [a, random(device, dtype, *head, k, n)]
            more = [random(device, dtype, n), random(device, dtype, m, n)] if kind == "fused" else []
            return [a, random(device, dtype, n, k), *more]

        functions: dict[str, Callable[..., Any]] = {"product": product, "linear": F.linear, "fused": fused}
        function = functions[kind]
        times = max(1, batch)
        nbytes = times * float(m * k + k * n + m * n * (2 if kind == "fused" else 1)) * dtype.itemsize
        label = f"{kind} {f'{batch}x' if batch else ''}{m}x{n}x{k} {name}"
        return Case("gemm", label, function, inputs, nbytes, 2.0 * times * m * n * k, targets=goal)

    sizes = (256, 512) if quick else SQUARE
    for name in ("float16", "bfloat16"):
        for size in sizes:
            for kind in ("product", "linear", "fused"):
                yield problem(kind, size, size, size, name, {})
    for size in sizes[:3]:
        yield problem("product", size, size, size, "float32", {"CUDA eager": 0.6})
        yield problem("linear", size, size, size, "float32", {"CUDA eager": 0.6})
    for m, n, k in THIN:
        if not quick:
            yield problem("linear", m, n, k, "float16", {"CUDA eager": 0.6})
    yield from integers(quick)
    for batch, size in ((4, 128),) if quick else ((64, 512), (256, 128)):
        yield problem("product", size, size, size, "float16", {"CUDA eager": 0.6}, batch=batch)
