"""Operands as they lie in memory: transposed, strided, at odd places, expanded, with NaN wherever none of them is.

A kernel that reads past an operand then shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def _filled(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.full(shape, torch.nan, dtype=dtype)
    return torch.full(shape, 1 if dtype == torch.bool else torch.iinfo(dtype).max, dtype=dtype)


def _into(place: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return place.copy_(values)


def _columns(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def _offset(x: torch.Tensor) -> torch.Tensor:
    """Rows with gaps of 3, from the second element of the storage on: no wide load is aligned."""
    *outer, rows, columns = x.shape
    base = _filled((*outer, rows, columns + 3), x.dtype)
    return _into(torch.cat([_filled((1,), x.dtype), base.flatten()])[1:].view(base.shape)[..., :columns], x)


def _padded(x: torch.Tensor) -> torch.Tensor:
    """Rows that begin at multiples of 8 elements, as padded buffers do: wide loads are aligned, and end in a gap."""
    columns = x.shape[-1]
    return _into(_filled((*x.shape[:-1], -(-columns // 8) * 8 + 8), x.dtype)[..., :columns], x)


def _steps(x: torch.Tensor) -> torch.Tensor:
    *outer, rows, columns = x.shape
    return _into(_filled((*outer, 2 * rows, 3 * columns), x.dtype)[..., ::2, 1::3], x)


def _one_row(x: torch.Tensor) -> torch.Tensor:
    return x[..., :1, :].expand(x.shape)


# name -> what lays a tensor [..., rows, columns] out so; "expanded" has other values then, one row for all.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": torch.Tensor.contiguous,
    "columns": _columns,
    "offset": _offset,
    "offset columns": lambda x: _offset(x.mT).mT,
    "padded": _padded,
    "steps": _steps,
    "expanded": _one_row,
}
# Those of which one of the last two dimensions is contiguous.
CONTIGUOUS = ("rows", "columns", "offset", "offset columns", "padded")


def to_device(operands: Sequence[Any]) -> list[Any]:
    """Copies on the device with the same strides, offsets, gaps and aliasing; leaves that require a gradient do."""
    storages: dict[int, torch.Tensor] = {}

    def move(x: torch.Tensor) -> torch.Tensor:
        source = x.detach()
        storage = source.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = torch.empty(0, dtype=torch.uint8).set_(storage).to("vulkan")
        place = torch.empty(0, dtype=source.dtype, device="vulkan")
        place.set_(storages[storage._cdata].untyped_storage(), source.storage_offset(), source.size(), source.stride())
        return place.requires_grad_(x.requires_grad)

    return [move(x) if isinstance(x, torch.Tensor) else x for x in operands]
