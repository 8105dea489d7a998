"""Products of matrices that torch has as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _addbmm(x: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """[N, P] + sum over b of [B, N, M] @ [B, M, P]: one product over B * M."""
    count, rows, depth = batch1.shape
    left = batch1.permute(1, 0, 2).reshape(rows, count * depth)
    return torch.addmm(x, left, batch2.reshape(count * depth, batch2.shape[2]), beta=beta, alpha=alpha)


def _weight_int8pack_mm(x: Any, weight: Any, scales: Any) -> Any:
    """[M, K] @ int8 [N, K].T, each of the N results scaled."""
    return torch.mm(x, weight.to(x.dtype).t()) * scales


TABLE: dict[Any, Callable[..., Any]] = {
    aten.addbmm.default: _addbmm,
    aten._weight_int8pack_mm.default: _weight_int8pack_mm,
}
