"""What rows of 8 bits are, and how far a product with them can be from one with floats: plain torch, on any device.

Owns the meaning of the option ``int8_activations`` and its bound (docs/int8-activations.md derives it). The kernels are
codegen/quantized/staged.py's.
"""

from __future__ import annotations

import torch

# Neighbours along a row that share a scale, and the largest byte.
BLOCK = 32
MOST = 127


def in_bytes(x: torch.Tensor) -> torch.Tensor:
    """``x`` [..., K] (K a multiple of 32) rounded to bytes times a float32 scale of every 32: float32 [..., K].

    scale = max |x| / 127 of the block, byte = x * (127 / max |x|) to the nearest, ties to even.
    """
    rows = x.float().unflatten(-1, (-1, BLOCK))
    most = rows.abs().amax(-1, keepdim=True)
    inverse = torch.where(most > 0, MOST / most, torch.zeros_like(most))
    return ((rows * inverse).round() * (most / MOST)).flatten(-2)


def bound(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The most by which in_bytes(x) @ weights.T can differ from x @ weights.T in exact arithmetic: float64 [m, n].

    ``x`` [m, K], ``weights`` [n, K]. A byte is off by half a scale at most: sum over blocks of max |x| / 254 * sum |w|.
    """
    halves = x.double().unflatten(-1, (-1, BLOCK)).abs().amax(-1) / (2 * MOST)
    sizes = weights.double().abs().unflatten(-1, (-1, BLOCK)).sum(-1)
    return halves @ sizes.T
