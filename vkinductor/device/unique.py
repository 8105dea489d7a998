"""Distinct values, the shapes of whose results depend on the data: composed from the device's own operators.

One number comes to the host, how many there are. Values are sorted as torch sorts them, so that even `sorted=False`
gives them in order; each NaN is a value of its own, as on the CPU.
"""

from __future__ import annotations

import torch

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _nothing(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.int64, device=like.device)


def _groups(starts: torch.Tensor, counts: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(where groups start, the group of each element, group sizes or nothing), from a mask of first elements (n,)."""
    n = starts.numel()
    group = starts.to(torch.int64).cumsum(0) - 1
    number = int(group[-1].item()) + 1
    firsts = torch.searchsorted(group, torch.arange(number, device=starts.device))
    if not counts:
        return firsts, group, _nothing(starts)
    ends = torch.cat((firsts[1:], firsts.new_full((1,), n)))
    return firsts, group, ends - firsts


def _differs(rows: torch.Tensor) -> torch.Tensor:
    """Which of `rows` (n, ...) differ from the one before; the first does."""
    changed = rows[1:] != rows[:-1]
    if changed.dim() > 1:
        changed = changed.flatten(1).any(1)
    return torch.cat((changed.new_ones(1), changed))


def unique2(x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> _Three:
    """`_unique2`: the distinct values of `x` in order, the place of each element of `x` among them, their counts."""
    if x.numel() == 0:
        return x.new_empty(0), _nothing(x).reshape(x.shape if return_inverse else (0,)), _nothing(x)
    values, order = torch.sort(x.reshape(-1), stable=True)
    firsts, group, counts = _groups(_differs(values), return_counts)
    inverse = _nothing(x)
    if return_inverse:
        inverse = torch.empty_like(group).scatter_(0, order, group).reshape(x.shape)
    return values.index_select(0, firsts), inverse, counts


def unique(x: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """`_unique`: as `_unique2` without counts."""
    return unique2(x, sorted, return_inverse)[:2]


def unique_consecutive(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> _Three:
    """`unique_consecutive`: one of each run of equal elements, or of equal slices along `dim`."""
    if dim is not None:
        return unique_dim_consecutive(x, dim, return_inverse, return_counts)
    if x.numel() == 0:
        return x.new_empty(0), _nothing(x).reshape(x.shape if return_inverse else (0,)), _nothing(x)
    flat = x.reshape(-1)
    firsts, group, counts = _groups(_differs(flat), return_counts)
    return flat.index_select(0, firsts), group.reshape(x.shape) if return_inverse else _nothing(x), counts


def unique_dim_consecutive(
    x: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> _Three:
    """`unique_dim_consecutive`: one of each run of equal slices along `dim`."""
    if x.numel() == 0 or x.dim() == 0:
        return _few(x, dim, return_counts)
    firsts, group, counts = _groups(_differs(x.movedim(dim, 0).reshape(x.shape[dim], -1)), return_counts)
    return x.index_select(dim, firsts), group, counts


def unique_dim(
    x: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> _Three:
    """`unique_dim`: the distinct slices of `x` along `dim`, in lexicographic order."""
    if x.numel() == 0 or x.dim() == 0:
        return _few(x, dim, return_counts)
    rows = x.movedim(dim, 0).reshape(x.shape[dim], -1)
    order = lexicographic(rows)
    firsts, group, counts = _groups(_differs(rows.index_select(0, order)), return_counts)
    inverse = torch.empty_like(group).scatter_(0, order, group) if return_inverse else _nothing(x)
    return x.index_select(dim, order.index_select(0, firsts)), inverse, counts


def lexicographic(rows: torch.Tensor) -> torch.Tensor:
    """The stable order (n,) of `rows` (n, columns), columns from the first; NaN come last and are equal here.

    As many neighbouring columns as fit become one int64, and the ranks of those are columns again: the columns of a
    round are sorted at once, and a thousand of them take three or four rounds.
    """
    keys, rank_bits = rows.t(), max(1, (rows.shape[0] - 1).bit_length())
    narrow = _NARROW.get(rows.dtype)
    if narrow is not None:
        bits, lowest = narrow
        keys = _packed(keys.to(torch.int64) - lowest, bits)
    while keys.shape[0] > 1:
        keys = _packed(_ranks(keys), rank_bits)
    return torch.sort(keys.reshape(-1), stable=True)[1]


# dtype -> (bits of its values, the lowest)
_NARROW = {torch.bool: (1, 0), torch.uint8: (8, 0), torch.int8: (8, -(1 << 7)), torch.int16: (16, -(1 << 15))}


def _packed(keys: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of `keys` (columns, n), int64 in [0, 2**bits), put together: fewer rows in the same order."""
    together = min(63 // bits, keys.shape[0])
    groups = -(-keys.shape[0] // together)
    missing = groups * together - keys.shape[0]
    if missing:
        keys = torch.cat((keys, keys.new_zeros((missing, keys.shape[1]))))
    weights = torch.tensor([1 << bits * i for i in reversed(range(together))], device=keys.device)
    return (keys.reshape(groups, together, -1) * weights.reshape(-1, 1)).sum(1)


def _ranks(keys: torch.Tensor) -> torch.Tensor:
    """For each row of `keys` (columns, n) the ranks of its values: int64 from 0, equal ones for equal values."""
    values, order = torch.sort(keys, dim=1, stable=True)
    before, after = values[:, :-1], values[:, 1:]
    changed = before != after
    if values.is_floating_point():
        changed &= ~before.isnan()
    ranks = torch.cat((changed.new_zeros((keys.shape[0], 1)), changed), 1).to(torch.int64).cumsum(1)
    return torch.empty_like(ranks).scatter_(1, order, ranks)


def _few(x: torch.Tensor, dim: int, counts: bool) -> _Three:
    """Of a tensor without elements, or with one and no dimension."""
    if x.dim() == 0:
        one = torch.ones(1, dtype=torch.int64, device=x.device)
        return x.reshape(1).clone(), one - 1, one if counts else _nothing(x)
    if x.shape[dim] != 0:
        raise RuntimeError(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied: the shape is "
            f"{tuple(x.shape)}, the dimension {dim}"
        )
    return x.new_empty(x.shape), _nothing(x), _nothing(x)


KERNELS = {
    "_unique": unique,
    "_unique2": unique2,
    "unique_consecutive": unique_consecutive,
    "unique_dim": unique_dim,
    "unique_dim_consecutive": unique_dim_consecutive,
}
