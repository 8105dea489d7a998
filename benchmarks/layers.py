"""Layers of a decode step with what is around their products, as one kernel: RMSNorm with q, k and v, SiLU gates, and
weights in GGUF's blocks. One row; each on several weights in turn, which do not wait for each other: fewer than what
makes a program whose dispatches are chained (docs/options.md), as those of a whole step are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .cases import DTYPES, Case
from .gemm import random

# k, rows of q, k and v, rows of the gate, its width: SmolLM2-135M, llama-1.1B, llama3-8B.
MODELS = ((576, (576, 192, 192), 1536), (2048, (2048, 256, 256), 5632), (4096, (4096, 1024, 1024), 14336))
# GGUF's formats: its number, weights and bytes of a block.
BLOCKS = {"Q4_0": (2, 32, 18), "Q4_K": (12, 256, 144), "Q8_0": (8, 32, 34)}
INNER = 4
# Two bytes below this are a sensible scale in half precision.
_BELOW = 24


def _linear(x: Any, weight: Any, number: int | None) -> Any:
    if number is None:
        return F.linear(x, weight)
    if weight.device.type == "cuda":
        raise NotImplementedError("weights in blocks are ours")
    return torch.ops.vkinductor.quantized_linear(x, weight, number)


def _several(number: int | None, parts: int, gate: bool) -> Any:
    """Layers of ``parts`` weights each: their rows x, the norm's gain, the weights; and again."""

    def several(*given: Any) -> tuple[Any, ...]:
        found = []
        for first in range(0, len(given), parts + 2):
            x, gain, *weights = given[first : first + parts + 2]
            rows = F.rms_norm(x, gain.shape, gain, 1e-5)
            results = [_linear(rows, weight, number) for weight in weights]
            found += [F.silu(results[0]) * results[1]] if gate else results
        return tuple(found)

    return several


def cases(quick: bool) -> Iterator[Case]:
    """Each model's layers in float16 and in blocks."""
    for k, heads, width in MODELS[:1] if quick else MODELS:
        for name in ("float16", *BLOCKS):
            number, weights, block = BLOCKS.get(name, (None, 1, 2))
            if k % weights:
                continue
            row = k // weights * block
            for what, sizes in (("q, k, v", heads), ("gate", (width, width))):
                nbytes = float(sum(sizes) * row)
                inner = max(2, min(INNER, int(400e6 // nbytes)))

                def make(
                    device: str, s: Any = sizes, r: int = row, n: int = inner, q: Any = number, k: int = k
                ) -> list[Any]:
                    half, made = DTYPES["float16"], []
                    for _ in range(n):
                        made += [random(device, half, 1, k), random(device, half, k)]
                        for rows in s:
                            if q is None:
                                made.append(random(device, half, rows, k))
                            else:
                                made.append(torch.randint(_BELOW, (rows, r), device=device).to(torch.uint8))
                    return made

                text = "+".join(map(str, sizes)) if what != "gate" else f"2x{width}"
                function = _several(number, len(sizes), what == "gate")
                yield Case("layers", f"norm, {what} {text}x{k} {name}", function, make, nbytes, inner=inner)
