"""RMSNorm with residual, LayerNorm, softmax and log-softmax with NLL, from few long rows to many short ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .cases import DTYPES, Case

SHAPES = ((64, 32768), (512, 16384), (2048, 8192), (8192, 4096), (16384, 2048), (32768, 1024), (65536, 256))


def rms_norm_residual(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    """The sum and its norm, as a decoder layer has them."""
    total = x + residual
    return F.rms_norm(total, (total.shape[-1],), weight), total


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Alone, for the gradients."""
    return F.rms_norm(x, (x.shape[-1],), weight)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """With weight and bias."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Over the last dimension."""
    return F.softmax(x, -1)


def cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Log-softmax and NLL."""
    return F.nll_loss(F.log_softmax(x.float(), -1), target)


# Function, which of (x, y, weight, bias, target) it takes, streams of x's size that it must move.
FORWARD: dict[str, tuple[Callable[..., Any], str, float]] = {
    "rms_norm + residual": (rms_norm_residual, "xyw", 4.0),
    "layer_norm": (layer_norm, "xwb", 2.0),
    "softmax": (softmax, "x", 2.0),
    "log_softmax + nll": (cross_entropy, "xt", 1.0),
}
BACKWARD: dict[str, tuple[Callable[..., Any], str, float]] = {
    "rms_norm backward": (rms_norm, "xw", 3.0),
    "layer_norm backward": (layer_norm, "xwb", 3.0),
    "softmax backward": (softmax, "x", 3.0),
    "log_softmax + nll backward": (cross_entropy, "xt", 2.0),
}


@dataclass(frozen=True)
class _Inputs:
    rows: int
    columns: int
    dtype: torch.dtype
    wanted: str
    gradients: bool

    def __call__(self, device: str) -> list[torch.Tensor]:
        shapes = {"x": (self.rows, self.columns), "y": (self.rows, self.columns), "w": (self.columns,)}
        shapes["b"] = shapes["w"]
        made = []
        for letter in self.wanted:
            if letter == "t":
                made.append(torch.randint(self.columns, (self.rows,), device=device))
            else:
                value = torch.randn(shapes[letter], device=device).to(self.dtype)
                made.append(value.requires_grad_(self.gradients))
        return made


def cases(quick: bool) -> Iterator[Case]:
    """Forward, then backward."""
    for name, dtype in DTYPES.items():
        for rows, columns in SHAPES[::3] if quick else SHAPES:
            if quick:
                rows = max(8, rows // 16)
            element = float(rows * columns * dtype.itemsize)
            for backward, table in ((False, FORWARD), (True, BACKWARD)):
                for kind, (function, wanted, streams) in table.items():
                    moved = streams * element
                    goals = {"CUDA Inductor": 0.9 if backward else 1.0}
                    if not backward and moved > 100e6:
                        goals["ceiling"] = 0.85
                    inputs = _Inputs(rows, columns, dtype, wanted, backward)
                    label = f"{kind} {rows}x{columns} {name}"
                    yield Case("norms", label, function, inputs, moved, backward=backward, targets=goals)
