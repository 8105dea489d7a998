"""How far the gradients of norms and softmax may be off: first-order propagation of what is rounded on the way.

Written with x [rows, columns], u = the gradient of the result, v = that of a normalised row, h = a normalised row,
p = softmax. Two units occur: `e`, of sums in float32 (see ``errors.of_sum``), and `rho`, the rounding of the operands'
dtype where that is half precision and a tensor is stored between forward and backward, as eager does. Roundings that
are stored are independent: their sum is a few times the root of the sum of squares. Nothing else may be in half
precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .errors import SINGLE, TINY, of_sum, rounding

EPS_RMS = 1e-6
EPS_LAYER = 1e-5


@dataclass(frozen=True)
class Units:
    """``e``: of a sum over a row; ``rho``: of what is stored, 0 where that is float32; ``tiny``: its absolute part."""

    e: float
    rho: float
    tiny: float


def units(columns: int, dtype: torch.dtype) -> Units:
    """For rows of ``columns`` elements of ``dtype``."""
    half = dtype in (torch.float16, torch.bfloat16)
    return Units(of_sum(columns), rounding(dtype) if half else 0.0, TINY[dtype] if half else 0.0)


def _independent(terms: torch.Tensor) -> torch.Tensor:
    """What relative roundings of ``terms`` add up to in a sum over the row, in units of one."""
    return 4 * terms.square().sum(-1, keepdim=True).sqrt()


def _sum(terms: torch.Tensor) -> torch.Tensor:
    return terms.sum(-1, keepdim=True)


def _mean(terms: torch.Tensor) -> torch.Tensor:
    return terms.mean(-1, keepdim=True)


def _exponential(x: torch.Tensor, e: float) -> torch.Tensor:
    """Of exp(x - max) over its sum, relative: the difference is rounded at the size of x."""
    return e + 4 * SINGLE * (1 + x.abs().amax(-1, keepdim=True))


def softmax(x: Any, y: Any, g: Any, b: Any, u: Any, own: Units) -> Any:
    """p (u - s), s = sum(p u); p is stored."""
    p = x.softmax(-1)
    inside = (u - _sum(p * u)).abs()
    sums = _exponential(x, own.e) * (u.abs() + _sum((p * u).abs())) * 2
    stored = own.rho * (inside + _independent(p * u))
    return p * (sums + stored) + own.tiny * (inside + p * _sum(u.abs()))


def _of_logarithms(x: torch.Tensor, w: torch.Tensor, own: Units) -> torch.Tensor:
    """w - p sum(w), where the logarithm of p is stored."""
    p, logarithm = x.softmax(-1), x.log_softmax(-1).abs()
    sums = 2 * SINGLE * w.abs() + 2 * _exponential(x, own.e) * p * _sum(w.abs())
    return sums + own.rho * logarithm * p * _sum(w).abs()


def log_softmax(x: Any, y: Any, g: Any, b: Any, u: Any, own: Units) -> Any:
    """u - p sum(u)."""
    return _of_logarithms(x, u, own)


def nll(x: Any, y: Any, g: Any, b: Any, u: Any, own: Units) -> Any:
    """w - p sum(w), w = -u y, of one u a row; w is stored."""
    w = u[:, None] * y
    return _of_logarithms(x, w, own) + own.rho * (w.abs() + x.softmax(-1) * _independent(w)) + 2 * own.tiny


def norm(x: Any, y: Any, g: Any, b: Any, u: Any, own: Units) -> Any:
    """u x / |x|; |x| and a quotient are stored."""
    size = x.norm(dim=-1, keepdim=True)
    return (own.e + 8 * SINGLE + 3 * own.rho) * (u[:, None] * x / size).abs() + own.tiny * x.abs() / size


def _normalized(h: Any, d: Any, r: Any, v: Any, c: Any, e: float) -> Any:
    """r (v - c mean(v) - h mean(v h)) where h is off by d, c = 1 with a mean; e: relative, of r and of each sum."""
    product = _mean((v * h).abs())
    size = v.abs() + c * _mean(v.abs()) + h.abs() * product
    # r's own error: twice the mean of what its squares are off by.
    scale = e + 2 * _mean(h.abs() * d)
    return r * ((scale + e) * size + d * product + h.abs() * _mean(v.abs() * d))


def rms_norm(x: Any, y: Any, g: Any, b: Any, u: Any, own: Units) -> Any:
    """Nothing is stored but the root, in float32."""
    r = (_mean(x.square()) + EPS_RMS).rsqrt()
    h = x * r
    return _normalized(h, 4 * SINGLE * h.abs(), r, u * g, 0.0, own.e)


def residual_rms_norm(x: Any, y: Any, g: Any, b: Any, u: Any, own: Units) -> Any:
    """z = x + y is stored: its roundings are independent."""
    z = x + y
    r = (_mean(z.square()) + EPS_RMS).rsqrt()
    h, v, n = z * r, u * g, z.shape[-1]
    inside = (v - h * _mean(v * h)).abs()
    mean, root = _independent(v * h) / n, _independent(h * h) / n
    stored = h.abs() * (_mean(v * h).abs() + mean) + root * (inside + 2 * (h * _mean(v * h)).abs())
    sums = _normalized(h, 4 * SINGLE * (x.abs() + y.abs()) * r, r, v, 0.0, own.e)
    return sums + own.rho * r * stored


def layer_norm(x: Any, y: Any, g: Any, b: Any, u: Any, own: Units) -> Any:
    """The mean is off by a sum of x: relative to the distance from it, that may be much."""
    away = x - _mean(x)
    r = (_mean(away.square()) + EPS_LAYER).rsqrt()
    d = r * (own.e * _mean(x.abs()) + 2 * SINGLE * x.abs()) + 4 * SINGLE * (away * r).abs()
    return _normalized(away * r, d, r, u * g, 1.0, own.e)


# operator -> what the gradient of x may be off by, of its operands, the gradient of its result and units.
OF_GRADIENTS: dict[str, Callable[..., Any]] = {
    "softmax": softmax,
    "log softmax": log_softmax,
    "nll": nll,
    "norm": norm,
    "rms norm": rms_norm,
    "residual and rms norm": residual_rms_norm,
    "layer norm": layer_norm,
}
