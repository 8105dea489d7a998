"""Lowerings of scatters: every reduction as an atomic of its own, for every dtype.

Inductor has Triton's atomics in mind: sums alone, and neither int64 nor bool. Sums of floats depend on the order of
arrival; where ``torch.use_deterministic_algorithms`` is on, Inductor's lowerings give them to the CPU kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V, ops

from vkinductor.runtime import context

aten = torch.ops.aten

# torch's names of reductions -> the store's mode.
MODES = {None: None, "sum": "atomic_add", "amax": "atomic_max", "amin": "atomic_min", "prod": "atomic_mul"}


def lacks_atomics(dtype: torch.dtype) -> bool:
    """Whether this device cannot change an element of ``dtype`` atomically."""
    return dtype.itemsize == 8 and not context.get().info.features.int64_atomics


def identity(reduce: str, dtype: torch.dtype) -> Any:
    """What a reduction starts from."""
    if reduce == "prod":
        return 1
    if reduce == "sum":
        return 0
    if dtype == torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    return torch.iinfo(dtype).min if reduce == "amax" else torch.iinfo(dtype).max


def with_every_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor's lowering of an index_put, for whatever dtype this device has atomics."""

    def lower(*args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(lowering, "needs_fallback_due_to_atomic_add_limitations", lacks_atomics):
            return original(*args, **kwargs)

    return lower


def scatter_reduce(original: Callable[..., Any], copies: bool) -> Callable[..., Any]:
    """aten.scatter_reduce (``copies``) or aten.scatter_reduce_: every reduction but the mean, which decomposes."""

    def lower(x: Any, dim: int, index: Any, src: Any, reduce: Any, *, include_self: bool = True) -> Any:
        if reduce not in MODES or lacks_atomics(x.get_dtype()) or torch.are_deterministic_algorithms_enabled():
            return original(x, dim, index, src, reduce, include_self=include_self)
        return _scatter(lowering.clone(x) if copies else x, dim, index, src, reduce, include_self)

    return lower


def scatter_add(original: Callable[..., Any], copies: bool) -> Callable[..., Any]:
    """aten.scatter_add and aten.scatter_add_."""

    def lower(x: Any, dim: int, index: Any, src: Any) -> Any:
        if lacks_atomics(x.get_dtype()) or torch.are_deterministic_algorithms_enabled():
            return original(x, dim, index, src)
        return _scatter(lowering.clone(x) if copies else x, dim, index, src, "sum", True)

    return lower


def scatter(original: Callable[..., Any], copies: bool) -> Callable[..., Any]:
    """aten.scatter and aten.scatter_: the last of several writes to one place is any of them."""
    names = {None: None, "add": "sum", "multiply": "prod"}

    def lower(x: Any, dim: int, index: Any, src: Any, *, reduce: str | None = None) -> Any:
        if torch.are_deterministic_algorithms_enabled() or (reduce and lacks_atomics(x.get_dtype())):
            return original(x, dim, index, src, **({"reduce": reduce} if reduce else {}))
        return _scatter(lowering.clone(x) if copies else x, dim, index, src, names[reduce], True)

    return lower


def _scatter(x: Any, dim: int, index: Any, src: Any, reduce: str | None, include_self: bool) -> Any:
    """Reduce ``src`` into ``x``, in place."""
    view = lowering.view
    scalar = len(x.get_size()) == 0
    target = view(x, [1]) if scalar else x
    index, src = (view(t, [1]) if isinstance(t, ir.TensorBox) and len(t.get_size()) == 0 else t for t in (index, src))
    dim = lowering._validate_dim(target, dim)
    target.realize()
    dtype = target.get_dtype()
    if isinstance(src, ir.TensorBox):
        if src.get_dtype() != dtype:
            src = lowering.to_dtype(src, dtype)
        if ir.try_get_name(target) in src.get_read_names():
            src.realize()
    index_at = index.make_loader()
    size, device = target.get_size(), target.get_device()
    assert device is not None

    def place(at: Any) -> Any:
        indirect = list(at)
        indirect[dim] = ops.indirect_indexing(index_at(at), size[dim], wrap_neg=False)
        return indirect

    def write(value: Callable[..., Any], mode: Any) -> None:
        data = ir.Scatter(
            device=device, dtype=dtype, inner_fn=value, ranges=index.get_size(), output_indexer=place,
            scatter_mode=mode,
        )  # fmt: skip
        buffer = ir.ComputedBuffer(name=None, layout=ir.MutationLayoutSHOULDREMOVE(target), data=data)
        buffer.name = V.graph.register_buffer(buffer)
        V.graph.register_operation(buffer)

    if reduce is not None and not include_self:
        start = identity(reduce, dtype)
        write(lambda at: ops.constant(start, dtype), None)
    source = src.make_loader() if isinstance(src, ir.TensorBox) else lambda at: ops.constant(src, dtype)
    write(source, MODES[reduce])
    return x
