"""Order statistics from a stable sort: topk, kthvalue, medians, the mode; and their kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _sorted(x: Any, dim: int, descending: bool = False) -> Any:
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def _scalar(x: Any) -> Any:
    """What an operator over the only element of a tensor without dimensions gives."""
    return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)


def _topk(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The first k of a sort; their order is the sorted one whether asked for or not."""
    if x.dim() == 0:
        values, indices = _scalar(x)
        return (values, indices) if k else (values.new_empty(0), indices.new_empty(0))
    values, indices = _sorted(x, dim, largest)
    return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()


def _at(x: Any, dim: int, keepdim: bool, place: Callable[[Any, Any], Any]) -> Any:
    """The (value, index) at place(sorted values, length) of each sorted row."""
    if x.dim() == 0:
        return _scalar(x)
    values, indices = _sorted(x, dim)
    at = place(values, x.shape[dim])
    if not isinstance(at, torch.Tensor):
        pair = values.narrow(dim, at, 1), indices.narrow(dim, at, 1)
    else:
        pair = values.gather(dim, at), indices.gather(dim, at)
    return tuple(part.clone() if keepdim else part.squeeze(dim).clone() for part in pair)


def _kthvalue(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    return _at(x, dim, keepdim, lambda values, length: k - 1)


def _median_place(dim: int, ignore: bool) -> Callable[[Any, Any], Any]:
    """Where the lower median stands among sorted values: NaN come last, and a median with one is the first of them."""

    def place(values: Any, length: Any) -> Any:
        if not values.is_floating_point():
            return (length - 1) // 2
        numbers = (~values.isnan()).sum(dim, keepdim=True)
        if ignore:
            return ((numbers - 1) // 2).clamp(min=0)
        return torch.where(numbers < length, numbers, (length - 1) // 2)

    return place


def _median_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    return _at(x, dim, keepdim, _median_place(dim, False))


def _nanmedian_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    return _at(x, dim, keepdim, _median_place(dim, True))


def _empty_median(x: Any) -> Any:
    return torch.full((), float("nan") if x.is_floating_point() else 0, dtype=x.dtype, device=x.device)


def _median(x: Any) -> Any:
    if x.numel() == 0:
        return NotImplemented if not x.is_floating_point() else _empty_median(x)
    return _median_dim(x.reshape(-1), 0)[0]


def _nanmedian(x: Any) -> Any:
    if x.numel() == 0:
        return NotImplemented if not x.is_floating_point() else _empty_median(x)
    return _nanmedian_dim(x.reshape(-1), 0)[0]


def _mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The smallest of the most frequent values, and the last position that has it."""
    if x.dim() == 0:
        return _scalar(x)
    values, indices = _sorted(x, dim)
    place = torch.arange(x.shape[dim], device=x.device).reshape([-1] + [1] * (x.dim() - 1 - dim % x.dim()))
    before = values.gather(dim, (place - 1).clamp(min=0).expand(x.shape))
    starts = torch.where((values != before) | (place == 0), place, 0)
    length = place - starts.cummax(dim)[0]
    at = length.argmax(dim, keepdim=True)
    pair = values.gather(dim, at), indices.gather(dim, at)
    return pair if keepdim else tuple(part.squeeze(dim) for part in pair)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.topk.default: _topk,
    aten.kthvalue.default: _kthvalue,
    aten.median.dim: _median_dim,
    aten.median.default: _median,
    aten.nanmedian.dim: _nanmedian_dim,
    aten.nanmedian.default: _nanmedian,
    aten.mode.default: _mode,
}
