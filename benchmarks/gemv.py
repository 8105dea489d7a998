"""Products of one to sixteen rows with a weight matrix: the shapes of decoding, each on several weights in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F

from .cases import DTYPES, Case
from .gemm import random

# Outputs x inputs: projections of llama-1.1B, llama3-1B, SmolLM2-135M and llama3-8B, and their heads.
SHAPES = (
    (576, 576),
    (1536, 576),
    (2048, 2048),
    (2560, 2048),
    (8192, 2048),
    (2048, 5632),
    (11264, 2048),
    (4096, 4096),
    (6144, 4096),
    (28672, 4096),
    (4096, 14336),
    (32000, 2048),
    (128256, 2048),
)
INNER = 8


def several(x: Any, *weights: Any) -> tuple[Any, ...]:
    """One row of activations times each of the weights: independent products."""
    return tuple(F.linear(x, w) for w in weights)


def cases(quick: bool) -> Iterator[Case]:
    """One row at every shape in both half precisions; more rows at some."""
    for name in ("float16", "bfloat16"):
        for outputs, inputs_ in SHAPES[:3] if quick else SHAPES:
            for rows in (1,) if (outputs, inputs_) not in ((2048, 2048), (4096, 4096)) else (1, 2, 4, 8, 16):
                dtype = DTYPES[name]
                nbytes = float(outputs * inputs_) * dtype.itemsize
                inner = max(2, min(INNER, int(400e6 // nbytes)))

                def make(
                    device: str, o: int = outputs, i: int = inputs_, r: int = rows, n: int = inner, d: Any = dtype
                ) -> Any:
                    return [random(device, d, r, i), *(random(device, d, o, i) for _ in range(n))]

                yield Case(
                    "gemv",
                    f"{rows} x {outputs}x{inputs_} {name}",
                    several,
                    make,
                    nbytes,
                    inner=inner,
                    targets={"CUDA eager": 1.1},
                )
