"""Rotary positions: the frequencies of each scaling, cosines and sines of positions, and the rotation of heads.

Halves of a head are rotated against each other, as the models' own code has it. Rotation: https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vkinductor.llm.architectures import Rope

Rotation = tuple[torch.Tensor, torch.Tensor]


def frequencies(rope: Rope) -> torch.Tensor:
    """Radians a token of each pair: float32, (width / 2,), before what a file adds as factors of its own."""
    plain = 1.0 / rope.base ** (torch.arange(0, rope.width, 2, dtype=torch.float32) / rope.width)
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "yarn":
        return _yarn(plain, rope)
    return plain


def _yarn(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Slow pairs are stretched by the factor, quick ones stay (https://arxiv.org/abs/2309.00071, section 3.2)."""

    def pair(turns: float) -> float:
        """The pair that turns so often within the original context."""
        return rope.width * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(math.floor(pair(rope.beta_fast)), 0)
    high = min(math.ceil(pair(rope.beta_slow)), rope.width - 1)
    ramp = ((torch.arange(rope.width // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


class Rotary(nn.Module):
    """Cosines and sines for one kind of layer.

    `factors`: what the file divides the frequencies by (float32, (width / 2,)), or None. `long_factors`: the same
    beyond the original context (longrope), or None. The frequencies stay float32 whatever dtype the model gets.
    """

    near: torch.Tensor
    far: torch.Tensor | None

    def __init__(self, rope: Rope, factors: torch.Tensor | None = None, long_factors: torch.Tensor | None = None):
        super().__init__()
        self.rope = rope
        plain = frequencies(rope)
        self.register_buffer("near", plain if factors is None else plain / factors)
        self.register_buffer("far", None if long_factors is None else plain / long_factors)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """Cosines and sines, (batch, tokens, width) in `dtype`, of `positions`, int64 (batch, tokens)."""
        turning = self.near
        if self.far is not None:
            # One choice for all tokens of a call, by the furthest: neighbours have to be rotated alike.
            turning = torch.where(positions.amax() >= self.rope.original, self.far, self.near)
        angles = positions[..., None].float() * turning
        angles = torch.cat((angles, angles), -1)
        return (angles.cos() * self.rope.amplitude).to(dtype), (angles.sin() * self.rope.amplitude).to(dtype)

    def _apply(self, fn: Callable[[torch.Tensor], Any], recurse: bool = True) -> Any:
        kept = {name: value for name, value in self._buffers.items() if value is not None}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype != torch.float32:
                self._buffers[name] = value.to(moved.device)
        return self

    def extra_repr(self) -> str:
        return repr(self.rope)


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x (batch, heads, tokens, head width) turned; what is beyond the rotation's width stays."""
    cos, sin = (part[:, None] for part in rotation)
    width = cos.shape[-1]
    if width == x.shape[-1]:
        return x * cos + _rotate_half(x) * sin
    turned, rest = x[..., :width], x[..., width:]
    return torch.cat((turned * cos + _rotate_half(turned) * sin, rest), -1)


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)
