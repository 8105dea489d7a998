"""Layers of a decode step with what is around their products, as one kernel: RMSNorm with q, k and v, SiLU gates, and
weights in GGUF's blocks. One row; each on several weights in turn, which do not wait for each other: fewer than what
makes a program whose dispatches are chained (docs/options.md), as those of a whole step are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .cases import Case
from .llama import FLOAT16, FORMATS, SHAPES, Weights

MODELS = ("SmolLM2-135M", "llama-1.1B", "llama3-8B")
WEIGHTS = (FLOAT16, "Q4_0", "Q4_K", "Q8_0")
INNER = 4


@dataclass(frozen=True)
class _Layers:
    """``inner`` layers with weights [n, ``k``] for each n of ``sizes``: their rows x, the norm's gain, the weights; and
    again. ``gate``: SiLU of the first result times the second."""

    k: int
    sizes: tuple[int, ...]
    gate: bool
    format: str
    inner: int

    def inputs(self, device: str) -> list[torch.Tensor]:
        """What ``several`` takes, on ``device``."""
        weights, made = Weights(self.format), []
        for _ in range(self.inner):
            made += [weights.normal(1, self.k), weights.normal(self.k)]
            made += [weights.matrix(n, self.k, self.k**-0.5) for n in self.sizes]
        return [tensor.to(device) for tensor in made]

    def several(self, *given: Any) -> tuple[Any, ...]:
        """Every layer's results."""
        found: list[Any] = []
        each = 2 + len(self.sizes)
        for first in range(0, len(given), each):
            x, gain, *weights = given[first : first + each]
            results = self._products(F.rms_norm(x, gain.shape, gain, 1e-5), weights)
            found += [F.silu(results[0]) * results[1]] if self.gate else results
        return tuple(found)

    def _products(self, x: Any, weights: Sequence[Any]) -> list[Any]:
        if self.format == FLOAT16:
            return [F.linear(x, weight) for weight in weights]
        if x.device.type == "cuda":
            raise NotImplementedError("weights in blocks are ours")
        return [torch.ops.vkinductor.quantized_linear(x, weight, FORMATS[self.format][0]) for weight in weights]


def cases(quick: bool) -> Iterator[Case]:
    """Each model's layers in float16 and in blocks."""
    for model in MODELS[:1] if quick else MODELS:
        shape = SHAPES[model]
        k, keys = shape.hidden, shape.kv_heads * shape.head
        for name in WEIGHTS:
            elements, nbytes = (1, 2) if name == FLOAT16 else FORMATS[name][1:3]
            if k % elements:
                continue
            for what, sizes in (("q, k, v", (k, keys, keys)), ("gate", (shape.inner, shape.inner))):
                moved = float(sum(sizes) * k // elements * nbytes)
                inner = max(2, min(INNER, int(400e6 // moved)))
                layers = _Layers(k, sizes, what == "gate", name, inner)
                text = f"2x{sizes[0]}" if layers.gate else "+".join(map(str, sizes))
                label = f"norm, {what} {text}x{k} {name}"
                yield Case("layers", label, layers.several, layers.inputs, moved, inner=inner)
