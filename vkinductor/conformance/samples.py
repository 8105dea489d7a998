"""torch's own catalogue of operators: entries, the dtypes each is checked in, and samples of its arguments.

Source: `op_db` of torch.testing._internal.common_methods_invocations. Samples are those of torch, made reproducible,
and copies of a few of them whose tensors are not contiguous.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


# Results that are random or whatever memory held; the catalogue marks only some of them.
_RANDOM = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform"),
    *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "pca_lowrank"),
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.rrelu"),
    *("nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout"),
    *("nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"),
}


class Sample(NamedTuple):
    """The arguments of one call, on the CPU."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@functools.cache
def _entries() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, Any] = {}
    for info in op_db:
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        assert name not in found, f"two entries are called {name}"
        found[name] = info
    return found


def names() -> list[str]:
    """Names of the entries, in the catalogue's order; a variant's follows a dot."""
    return list(_entries())


def dtypes(name: str) -> list[torch.dtype]:
    """Those of `DTYPES` that the CPU, which is the reference, has the entry for."""
    supported = _entries()[name].supported_dtypes("cpu")
    return [dtype for dtype in DTYPES if dtype in supported]


def operator(name: str) -> Callable[..., Any]:
    """The function of an entry."""
    op: Callable[..., Any] = _entries()[name].op
    return op


def backward(name: str, dtype: torch.dtype) -> bool:
    """Whether the entry has a derivative in this dtype."""
    info = _entries()[name]
    return bool(info.supports_autograd and dtype in info.supported_backward_dtypes("cpu"))


def reproducible(name: str) -> bool:
    """Whether two runs give one result: random numbers and uninitialized memory are compared by form alone."""
    info = _entries()[name]
    return not (info.has_nondeterministic_output or info.name in _RANDOM)


def samples(name: str, dtype: torch.dtype, limit: int | None = None) -> Iterator[Sample]:
    """Samples of an entry's arguments, at most `limit`, spread over the catalogue's own.

    Empty and zero-dimensional ones are kept when there are any, and one more has tensors that are not contiguous.
    """
    info = _entries()[name]
    torch.manual_seed(0)
    random.seed(0)
    made = [Sample((s.input, *s.args), dict(s.kwargs)) for s in info.sample_inputs("cpu", dtype)]
    if not made:
        return
    chosen = _spread(made, limit)
    yield from chosen
    strided = next((s for s in chosen if any(t.dim() > 1 and t.numel() > 1 for t in tensors(s))), None)
    if strided is not None:
        yield Sample(*tree_map(_not_contiguous, tuple(strided)))


def _spread(made: list[Sample], limit: int | None) -> list[Sample]:
    if limit is None or len(made) <= limit:
        return made
    special = [
        next((i for i, s in enumerate(made) if any(map(kind, tensors(s)))), None)
        for kind in (lambda t: t.numel() == 0, lambda t: t.dim() == 0)
    ]
    picked = dict.fromkeys(i for i in special if i is not None)
    for n in range(limit):
        if len(picked) >= limit:
            break
        picked[n * len(made) // limit] = None
    return [made[i] for i in sorted(picked)]


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _not_contiguous(value: Any) -> Any:
    """The same values with strides of a transposed tensor with gaps."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.numel() < 2 or value.layout != torch.strided:
        return value
    order = list(reversed(range(value.dim())))
    wide = value.detach().permute(order)
    room = wide.new_zeros([*wide.shape[:-1], 2 * wide.shape[-1]])
    room[..., ::2] = wide
    return room[..., ::2].permute(order).requires_grad_(value.requires_grad)
