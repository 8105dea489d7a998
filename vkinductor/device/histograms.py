"""Histograms over one or several dimensions: edges, places among them, counts or sums of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def _edges(x: torch.Tensor, bins: int, ends: Sequence[float] | None) -> torch.Tensor:
    """`bins` equal intervals over `ends`, by default those of the data; half a unit each way where they coincide."""
    if ends is not None:
        low, high = (torch.full((), float(v), dtype=x.dtype, device=x.device) for v in ends)
    elif x.numel():
        low, high = x.aminmax()
    else:
        low, high = torch.zeros((), dtype=x.dtype, device=x.device), torch.ones((), dtype=x.dtype, device=x.device)
    same = low == high
    low, high = torch.where(same, low - 0.5, low), torch.where(same, high + 0.5, high)
    # From the nearer end, as torch.linspace.
    at = torch.arange(bins + 1, dtype=x.dtype, device=x.device)
    step = (high - low) / bins
    return torch.where(at < (bins + 1) // 2, low + step * at, high - step * (bins - at))


def _count(x: torch.Tensor, edges: Sequence[torch.Tensor], weight: torch.Tensor | None, density: bool) -> torch.Tensor:
    """The histogram of the rows of `x` [N, D]. The last interval holds its right end."""
    sizes = [len(e) - 1 for e in edges]
    place = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    inside = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    total = 1
    for column, edge, size in zip(x.unbind(1), edges, sizes, strict=True):
        column = column.contiguous()
        bin_ = torch.searchsorted(edge.contiguous(), column, right=True) - 1
        inside &= (column >= edge[0]) & (column <= edge[-1])
        place = place * size + bin_.clamp(0, size - 1)
        total *= size
    added = torch.ones((), dtype=x.dtype, device=x.device) if weight is None else weight.reshape(-1)
    slots = torch.zeros(total + 1, dtype=x.dtype, device=x.device)
    slots.scatter_add_(0, torch.where(inside, place, total), added.expand(x.shape[0]).to(x.dtype))
    counts = slots[:total].reshape(sizes).clone()
    if density:
        counts /= counts.sum()
        for dim, edge in enumerate(edges):
            shape = [1] * len(sizes)
            shape[dim] = -1
            counts /= (edge[1:] - edge[:-1]).reshape(shape)
    return counts


def _pairs(ends: Sequence[float] | None, dims: int) -> list[Sequence[float] | None]:
    return [None if ends is None else ends[2 * i : 2 * i + 2] for i in range(dims)]


def _by_count(
    x: torch.Tensor, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    edges = _edges(x, bins, range)
    return _count(x.reshape(-1, 1), [edges], weight, density), edges


def _by_edges(
    x: torch.Tensor, bins: torch.Tensor, *, weight: Any = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return _count(x.reshape(-1, 1), [bins], weight, density), bins


def _all_edges(
    x: torch.Tensor, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False
) -> list[torch.Tensor]:
    rows = x.reshape(-1, x.shape[-1])
    ends = _pairs(range, len(bins))
    return [_edges(rows[:, i], n, ends[i]) for i, n in enumerate(bins)]


def _all_by_count(
    x: torch.Tensor, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False
) -> torch.Tensor:
    return _count(x.reshape(-1, x.shape[-1]), _all_edges(x, bins, range=range), weight, density)


def _all_by_edges(
    x: torch.Tensor, bins: Sequence[torch.Tensor], *, weight: Any = None, density: bool = False
) -> torch.Tensor:
    return _count(x.reshape(-1, x.shape[-1]), bins, weight, density)


KERNELS: dict[str, Callable[..., Any]] = {
    "histogram.bin_ct": _by_count,
    "histogram.bins_tensor": _by_edges,
    "_histogramdd_bin_edges": _all_edges,
    "_histogramdd_from_bin_cts": _all_by_count,
    "_histogramdd_from_bin_tensors": _all_by_edges,
}
