"""Operators whose result has a size that depends on the data: count on the device, read one number, fill there.

Each is composed of operators that are compiled, so that the numbers stay on the device; what is read is one
integer (two for bincount), as on every other device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

Dispatch = Callable[..., Any]

_MASKS = (torch.bool, torch.uint8)


def kernels(dispatch: Dispatch) -> dict[str, Callable[..., Any]]:
    """The kernels by the operators' names. ``dispatch``: runs an operator that has none of its own."""
    return {
        "nonzero": nonzero,
        "nonzero.out": into(nonzero),
        "masked_select": masked_select,
        "masked_select.out": into(masked_select),
        "equal": equal,
        "bincount": bincount,
        "index.Tensor": functools.partial(_index, dispatch),
        "_index_put_impl_": functools.partial(_index_put, dispatch),
    }


def into(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The out= form of ``kernel``."""

    def write(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        result = kernel(*args, **kwargs)
        return out.resize_(result.shape).copy_(result)

    return write


def nonzero(x: torch.Tensor) -> torch.Tensor:
    """int64 [count, x.dim()]: coordinates of the elements that are not zero, in row-major order."""
    if x.numel() == 0:
        return torch.empty((0, x.dim()), dtype=torch.int64, device=x.device)
    return aten.nonzero_static.default(x, size=int((x != 0).sum()))


def masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements of ``x`` where ``mask`` is true; both are broadcast."""
    if mask.dtype not in _MASKS:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, not {mask.dtype}")
    x, mask = torch.broadcast_tensors(x, mask)
    return x.reshape(-1).index_select(0, nonzero(mask.reshape(-1)).squeeze(1))


def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether sizes and all elements are the same (NaN is not the same as NaN)."""
    if x.dtype != y.dtype:
        raise RuntimeError(f"Expected object of data type {x.dtype} but got data type {y.dtype} for argument 'other'")
    return x.shape == y.shape and (x.numel() == 0 or bool((x == y).all()))


def bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """How often each number occurs, or the sum of its weights (float32 for float32, else float64).

    Raises:
        RuntimeError: not one-dimensional, negative, or with weights of another size.
    """
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if x.dim() != 1 or x.dtype.is_floating_point:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != x.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    size = minlength
    if x.numel():
        low, high = (int(v) for v in x.aminmax())
        if low < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        size = max(size, high + 1)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    if not x.numel():
        return torch.zeros(size, dtype=torch.int64, device=x.device)
    added = torch.ones((), dtype=dtype, device=x.device).expand(x.shape) if weights is None else weights.to(dtype)
    return torch.zeros(size, dtype=dtype, device=x.device).scatter_add(0, x.to(torch.int64), added)


def _as_numbers(indices: Any, device: torch.device) -> list[torch.Tensor | None]:
    """``indices`` with the coordinates of each mask in place of the mask."""
    numbers: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in _MASKS:
            numbers += [column.contiguous() for column in nonzero(index.to(device)).unbind(1)]
        else:
            numbers.append(index)
    return numbers


def _is_masked(indices: Any) -> bool:
    return any(index is not None and index.dtype in _MASKS for index in indices)


def _check_masks(x: torch.Tensor, indices: Any) -> None:
    at = 0
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            at += 1
            continue
        for size in index.shape:
            if at >= x.dim() or x.shape[at] != size:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {at} does not match the shape of the indexed "
                    f"tensor {list(x.shape)} at index {at}"
                )
            at += 1


def _index(dispatch: Dispatch, x: torch.Tensor, indices: Any) -> torch.Tensor:
    if _is_masked(indices):
        _check_masks(x, indices)
        if any(index is not None and index.dim() == 0 and index.dtype in _MASKS for index in indices):
            return dispatch(aten.index.Tensor, x, indices)
        indices = _as_numbers(indices, x.device)
    return dispatch(aten.index.Tensor, x, indices)


def _index_put(
    dispatch: Dispatch,
    x: torch.Tensor,
    indices: Any,
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    single = values.numel() == 1 and len(indices) == 1  # masked_fill
    if not single and _is_masked(indices):
        _check_masks(x, indices)
        if all(index is None or index.dim() for index in indices):
            indices = _as_numbers(indices, x.device)
    return dispatch(aten._index_put_impl_.default, x, indices, values, accumulate, unsafe)
