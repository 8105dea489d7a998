"""Linear resampling one dimension after another: what Inductor leaves to eager kernels of it.

Every operator here is y[o] = sum over i of weight(o, i) * x[i] along each dimension, with a weight that is zero outside
of a short range of i: a gather and a sum, which Inductor fuses into one kernel a dimension. A gradient is the same with
o and i exchanged. Terms of weight zero are not added: they could be infinite.

Positions and filters are those of torch's documentation (``align_corners``, cubic a = -0.75, antialiasing a = -0.5
after Pillow), in float32 as on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from .dtypes import compute_dtype

aten = torch.ops.aten

Weight = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Taps:
    """For each of ``size`` results the terms first[o] .. first[o] + count - 1, and weight(o, i) of each."""

    size: Any
    first: Any
    count: Any
    weight: Weight


def resample(x: Any, taps: Sequence[Taps]) -> Any:
    """``x`` with its last dimensions resampled by one ``Taps`` each, computed in float32 at least."""
    result = x.to(compute_dtype(x.dtype))
    for back, rule in enumerate(reversed(taps)):
        result = _along(result, -1 - back, rule)
    return result.to(x.dtype)


def _along(x: Any, dim: int, rule: Taps) -> Any:
    length = x.shape[dim]
    o = torch.arange(rule.size, device=x.device)[:, None]
    i = rule.first[:, None] + torch.arange(rule.count, device=x.device)
    weight = torch.where((i >= 0) & (i < length), rule.weight(o, i), 0).to(x.dtype)
    terms = x.movedim(dim, -1)[..., i.clamp(min=0).clamp(max=length - 1)]
    return torch.where(weight != 0, terms * weight, 0).sum(-1).movedim(-1, dim)


# Positions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Where ``outputs`` positions lie among ``inputs``; ``factor``: the scale the caller gave, if any."""

    inputs: Any
    outputs: Any
    align: bool
    factor: float | None
    device: Any

    def step(self) -> Any:
        """Inputs an output, a float32 tensor (no number: sizes may vary)."""
        if self.align:
            return (
                self._number(self.inputs - 1) / self._number(self.outputs - 1) if self.outputs > 1 else self._number(0)
            )
        if self.factor:
            return self._number(1.0 / self.factor)  # divided in double precision, as torch does
        return self._number(self.inputs) / self._number(self.outputs)

    def _number(self, value: Any) -> Any:
        dtype = torch.float32 if isinstance(value, float) else torch.int64
        return torch.full((), value, device=self.device, dtype=dtype).to(torch.float32)

    def center(self, o: Any) -> Any:
        """The position of output o, in inputs."""
        return o * self.step() if self.align else (o + 0.5) * self.step() - 0.5

    def outputs_within(self, inputs: int) -> Any:
        """At least as many outputs as lie within a stretch of so many inputs."""
        if self.align:
            return self.outputs if self.inputs == 1 else inputs * self.outputs // (self.inputs - 1) + 4
        if self.factor:
            return ceil(inputs * self.factor) + 4
        return inputs * self.outputs // self.inputs + 4

    def first_output(self, i: Any, reach: int) -> Any:
        """An output that lies ``reach`` or more inputs before i."""
        if self.align and (self.inputs == 1 or self.outputs == 1):
            return i * 0
        shift = 0.0 if self.align else 0.5
        return (((i - reach + shift) / self.step() - shift).floor() - 1).clamp(min=0).to(torch.int64)


def _linear(grid: Grid) -> Weight:
    def weight(o: Any, i: Any) -> Any:
        at = grid.center(o)
        at = at if grid.align else at.clamp(min=0.0)
        low = at.floor()
        part = at - low
        upper = (low + 1).clamp(max=grid.inputs - 1)
        return torch.where(low == i, 1 - part, 0) + torch.where(upper == i, part, 0)

    return weight


def _cubic(grid: Grid) -> Weight:
    def weight(o: Any, i: Any) -> Any:
        at = grid.center(o)
        low = at.floor()
        total: Any = 0.0
        for tap in (-1, 0, 1, 2):
            where = (low + tap).clamp(min=0).clamp(max=grid.inputs - 1)
            total = total + torch.where(where == i, _keys((at - low - tap).abs(), -0.75), 0)
        return total

    return weight


def _keys(distance: Any, a: float) -> Any:
    """Keys' cubic convolution kernel (1981)."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))


def _nearest(grid: Grid, exact: bool) -> Weight:
    def weight(o: Any, i: Any) -> Any:
        at = ((o + 0.5) * grid.step() if exact else o * grid.step()).floor().clamp(max=grid.inputs - 1)
        return torch.where(at == i, 1.0, 0.0)

    return weight


def _transposed(grid: Grid, weight: Weight, reach: int) -> Taps:
    """The gradient of resampling over ``grid``: for each input the outputs that take it."""
    i = torch.arange(grid.inputs, device=grid.device)
    return Taps(grid.inputs, grid.first_output(i, reach), grid.outputs_within(2 * reach), lambda i, o: weight(o, i))


def _backward(make: Callable[[Grid], Weight], reach: int, aligns: bool = True) -> Callable[..., Any]:
    def backward(gradient: Any, output_size: Any, input_size: Any, *rest: Any) -> Any:
        align, factors = (rest[0], rest[1:]) if aligns else (False, rest)
        factors = (*factors, *[None] * (len(output_size) - len(factors)))
        taps = []
        for inputs, outputs, factor in zip(input_size[2:], output_size, factors, strict=True):
            grid = Grid(inputs, outputs, align, factor, gradient.device)
            taps.append(_transposed(grid, make(grid), reach))
        return resample(gradient, taps)

    return backward


def _trilinear(x: Any, output_size: Any, align: bool, *factors: Any) -> Any:
    taps = []
    for grid in _grids(x.shape[2:], output_size, align, factors, x.device):
        first = grid.center(torch.arange(grid.outputs, device=x.device)).clamp(min=0.0).to(torch.int64)
        taps.append(Taps(grid.outputs, first, 2, _linear(grid)))
    return resample(x, taps)


# Antialiased -----------------------------------------------------------------------------------------------


def _antialiased(grid: Grid, cubic: bool) -> tuple[Taps, Taps]:
    """(the resampling, its gradient)."""
    half = 2 if cubic else 1
    step = grid.step()
    stretch = step.clamp(min=1.0)
    outputs = torch.arange(grid.outputs, device=grid.device)

    def span(o: Any) -> tuple[Any, Any]:
        center = step * (o + 0.5)
        low = (center - half * stretch + 0.5).to(torch.int64).clamp(min=0)
        return low, (center + half * stretch + 0.5).to(torch.int64).clamp(max=grid.inputs)

    def raw(o: Any, i: Any) -> Any:
        low, high = span(o)
        distance = ((i - step * (o + 0.5) + 0.5) / stretch).abs()
        value = _keys(distance, -0.5) if cubic else (1 - distance).clamp(min=0)
        return torch.where((i >= low) & (i < high), value, 0)

    if grid.factor and not grid.align:
        count: Any = 2 * ceil(half * max(1.0, 1 / grid.factor)) + 2
    elif grid.align:
        count = grid.inputs
    else:
        count = 2 * half * (grid.inputs // grid.outputs + 1) + 2
    first = span(outputs)[0]
    totals = raw(outputs[:, None], first[:, None] + torch.arange(count, device=grid.device)).sum(-1)

    def weight(o: Any, i: Any) -> Any:
        return raw(o, i) / totals[o.clamp(max=grid.outputs - 1)]

    i = torch.arange(grid.inputs, device=grid.device)
    if grid.align:
        back = Taps(grid.inputs, i * 0, grid.outputs, lambda i, o: weight(o, i))
    else:
        # An output reaches half * stretch inputs: as many outputs when it shrinks, half / step when it grows.
        reach = (half * stretch / step).ceil() + 1
        begin = (((i + 0.5) / step - 0.5).floor() - reach).clamp(min=0).to(torch.int64)
        ratio = ceil(grid.factor) if grid.factor else grid.outputs // grid.inputs + 1
        back = Taps(grid.inputs, begin, 2 * (half * (ratio + 1) + 2), lambda i, o: weight(o, i))
    return Taps(grid.outputs, first, count, weight), back


def _grids(sizes: Any, output_size: Any, align: bool, factors: Sequence[Any], device: Any) -> list[Grid]:
    factors = (*factors, *[None] * (len(output_size) - len(factors)))
    return [Grid(i, o, align, f, device) for i, o, f in zip(sizes, output_size, factors, strict=True)]


def _antialiased_forward(cubic: bool) -> Callable[..., Any]:
    def forward(x: Any, output_size: Any, align: bool, *factors: Any) -> Any:
        if not x.dtype.is_floating_point:
            return NotImplemented  # torch computes images of bytes in fixed point
        grids = _grids(x.shape[2:], output_size, align, factors, x.device)
        return resample(x, [_antialiased(grid, cubic)[0] for grid in grids])

    return forward


def _antialiased_backward(cubic: bool) -> Callable[..., Any]:
    def backward(gradient: Any, output_size: Any, input_size: Any, align: bool, *factors: Any) -> Any:
        grids = _grids(input_size[2:], output_size, align, factors, gradient.device)
        return resample(gradient, [_antialiased(grid, cubic)[1] for grid in grids])

    return backward


TABLE: dict[Any, Callable[..., Any]] = {
    aten.upsample_trilinear3d.default: _trilinear,
    aten.upsample_linear1d_backward.default: _backward(_linear, 1),
    aten.upsample_bilinear2d_backward.default: _backward(_linear, 1),
    aten.upsample_trilinear3d_backward.default: _backward(_linear, 1),
    aten.upsample_bicubic2d_backward.default: _backward(_cubic, 2),
    aten._upsample_bilinear2d_aa.default: _antialiased_forward(False),
    aten._upsample_bicubic2d_aa.default: _antialiased_forward(True),
    aten._upsample_bilinear2d_aa_backward.default: _antialiased_backward(False),
    aten._upsample_bicubic2d_aa_backward.default: _antialiased_backward(True),
}
for _name in ("upsample_nearest", "_upsample_nearest_exact"):
    for _dims in (1, 2, 3):
        _rule = _backward(functools.partial(_nearest, exact="exact" in _name), 1, aligns=False)
        TABLE[getattr(aten, f"{_name}{_dims}d_backward").default] = _rule
