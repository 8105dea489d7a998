"""Sampling at the points of a grid, in two and three dimensions, and its gradients.

y[p] = sum over taps k of weight(p, k) * x[place(p, k)]: the taps of all dimensions are one axis, digit d of k counts
those of dimension d. Positions are those of torch's documentation (``align_corners``, ``padding_mode``), in float32 at
least. Taps outside of x are zero and not read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .dtypes import compute_dtype

aten = torch.ops.aten

# Numbers of GridSamplerInterpolation and GridSamplerPadding.
_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2

_TAPS = {_BILINEAR: 2, _NEAREST: 1, _BICUBIC: 4}

# Beyond this a position is outside of every tensor, and so is one that is no number.
_FAR = 1e9


@dataclass(frozen=True)
class Axis:
    """One dimension of x: its ``size``, and how positions outside are brought in."""

    size: Any
    padding: int
    align: bool

    @property
    def extent(self) -> Any:
        """Elements from -1 to 1 of the grid: twice the derivative of ``position``."""
        return self.size - 1 if self.align else self.size

    def position(self, at: Any) -> Any:
        """The position, in elements, of grid values."""
        return (at + 1) / 2 * self.extent if self.align else ((at + 1) * self.size - 1) / 2

    def inside(self, at: Any) -> tuple[Any, Any]:
        """(positions after padding, derivative by those before)."""
        if self.padding == _ZEROS:
            return at, torch.ones_like(at)
        slope = torch.ones_like(at)
        if self.padding == _REFLECTION:
            at, slope = self._reflected(at)
        last = self.size - 1
        slope = torch.where((at <= 0) | (at >= last), 0, slope)
        return at.clamp(min=0).clamp(max=last), slope

    def _reflected(self, at: Any) -> tuple[Any, Any]:
        low, span = 0.0 if self.align else -0.5, self.extent
        if span == 0:
            return torch.zeros_like(at), torch.zeros_like(at)
        away = (at - low).abs()
        flips = (away / span).floor()
        rest = away - flips * span
        odd = flips % 2 == 1
        slope = torch.where((at < low) != odd, -1, 1).to(at.dtype)
        return torch.where(odd, span - rest, rest) + low, slope


@dataclass(frozen=True)
class Taps:
    """Along one dimension, [N, K, *points] each.

    ``place`` (int64) of each tap, ``valid`` where it lies in x, ``weight``, and ``slope``: the derivative of the weight
    by the grid's value.
    """

    place: Any
    valid: Any
    weight: Any
    slope: Any


def _keys(distance: Any) -> tuple[Any, Any]:
    """Keys' cubic convolution kernel (1981) with a = -0.75, and its derivative by the distance."""
    a = -0.75
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    near_slope = (3 * (a + 2) * distance - 2 * (a + 3)) * distance
    far_slope = (3 * a * distance - 10 * a) * distance + 8 * a
    return torch.where(distance < 1, near, far), torch.where(distance < 1, near_slope, far_slope)


def _along(axis: Axis, at: Any, digit: Any, mode: int) -> Taps:
    """``at``: grid values [N, 1, *points]; ``digit``: [K, 1, ...], which tap of this dimension each k is."""
    at = axis.position(at)
    inner: Any = 1
    if mode != _BICUBIC:
        at, inner = axis.inside(at)
    at = torch.where(at.abs() < _FAR, at, -100.0)
    if mode == _NEAREST:
        place, weight, rise = at.round(), torch.ones_like(at), torch.zeros_like(at)
    elif mode == _BILINEAR:
        low = at.floor()
        place = low + digit
        part = at - low
        weight = torch.where(digit == 0, 1 - part, part)
        rise = torch.where(digit == 0, -1, 1) * inner * axis.extent / 2
    else:
        low = at.floor()
        offset = at - low - (digit - 1)
        weight, rise = _keys(offset.abs())
        rise = rise * offset.sign() * axis.extent / 2
        place, _ = axis.inside(low + (digit - 1))
    valid = (place >= 0) & (place <= axis.size - 1)
    return Taps(place.clamp(min=0).clamp(max=axis.size - 1).to(torch.int64), valid, weight, rise)


def _taps(x: Any, grid: Any, mode: int, padding: int, align: bool) -> list[Taps]:
    """Of each dimension of x [N, C, *sizes]; the last number of a grid's point is that of the first dimension."""
    dims = x.dim() - 2
    each = _TAPS[mode]
    points = grid.to(compute_dtype(grid.dtype)).unbind(-1)
    k = torch.arange(each**dims, device=x.device).view(-1, *[1] * dims)
    made = []
    for d in range(dims):
        axis = Axis(x.shape[2 + d], padding, align)
        digit = k // each ** (dims - 1 - d) % each
        made.append(_along(axis, points[dims - 1 - d].unsqueeze(1), digit, mode))
    return made


def _product(factors: Any) -> Any:
    return functools.reduce(lambda a, b: a * b, factors)


def _valid(taps: list[Taps]) -> Any:
    """[N, 1, K, *points]: which taps lie in x."""
    return functools.reduce(lambda a, b: a & b, (t.valid for t in taps)).unsqueeze(1)


def _read(x: Any, taps: list[Taps]) -> Any:
    """[N, C, K, *points]: the element of each tap, 0 outside of x."""
    ones = [1] * (x.dim() - 1)
    n, c = torch.arange(x.shape[0], device=x.device), torch.arange(x.shape[1], device=x.device)
    places = [t.place.unsqueeze(1) for t in taps]
    values = aten._unsafe_index.Tensor(x, [n.view(-1, 1, *ones), c.view(-1, *ones), *places])
    return torch.where(_valid(taps), values.to(compute_dtype(x.dtype)), 0)


def _sample(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    taps = _taps(x, grid, mode, padding, align)
    weight = _product(t.weight for t in taps).unsqueeze(1)
    return (_read(x, taps) * weight).sum(2).to(x.dtype)


def _backward(gradient: Any, x: Any, grid: Any, mode: int, padding: int, align: bool, mask: Any) -> Any:
    """(gradient of x or None, gradient of the grid)."""
    compute = compute_dtype(x.dtype)
    taps = _taps(x, grid, mode, padding, align)
    wide = gradient.to(compute).unsqueeze(2)
    by_x = None
    if mask[0]:
        by_x = _scatter(wide, x, taps).to(x.dtype)
    if mode == _NEAREST:
        return by_x, torch.zeros_like(grid, memory_format=torch.contiguous_format)
    along = (wide * _read(x, taps)).sum(1)
    by_grid = []
    for d in reversed(range(len(taps))):
        factors = (t.slope if i == d else t.weight for i, t in enumerate(taps))
        by_grid.append((along * _product(factors)).sum(1))
    return by_x, torch.stack(by_grid, -1).to(grid.dtype)


def _scatter(wide: Any, x: Any, taps: list[Taps]) -> Any:
    """Each tap's share of the gradient, added where the tap was read."""
    flat: Any = 0
    for t, size in zip(taps, x.shape[2:], strict=True):
        flat = flat * size + t.place
    weight = _product(t.weight for t in taps).unsqueeze(1)
    shares = torch.where(_valid(taps), wide * weight, 0)
    places = flat.unsqueeze(1).expand(shares.shape)
    lead = x.shape[:2]
    made = torch.zeros(x.shape, dtype=wide.dtype, device=x.device).view(*lead, -1)
    return made.scatter_add(-1, places.reshape(*lead, -1), shares.reshape(*lead, -1)).view(x.shape)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.grid_sampler_3d.default: _sample,
    aten.grid_sampler_2d_backward.default: _backward,
    aten.grid_sampler_3d_backward.default: _backward,
}
