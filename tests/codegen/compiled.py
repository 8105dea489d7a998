"""Compiles a function for the device and compares it with eager on the CPU. Owns no tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

import vkinductor

# Float tensors are compared with torch.testing's tolerances, the ones torch's own operator tests start from.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
INTEGERS = SIGNED + UNSIGNED
DTYPES = (*FLOATS, *INTEGERS, torch.bool)


def name_of(dtype: torch.dtype) -> str:
    """A short test id."""
    return str(dtype).removeprefix("torch.")


def compiled(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``f`` compiled whole for Vulkan."""
    return torch.compile(f, backend="vulkan", fullgraph=True, **options)


def host(value: Any) -> Any:
    """``value`` with its tensors on the CPU."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), value)


def same(actual: Any, expected: Any, **tolerance: float) -> None:
    """Assert equal structure, dtypes, shapes and values (floats within torch.testing's tolerances unless given)."""
    got, got_spec = pytree.tree_flatten_with_path(host(actual))
    want, want_spec = pytree.tree_flatten_with_path(host(expected))
    assert got_spec == want_spec
    problems = []
    for (path, a), (_, b) in zip(got, want, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        limits = tolerance if b.dtype.is_floating_point else {}
        try:
            torch.testing.assert_close(a, b, equal_nan=True, **limits)
        except AssertionError as error:
            where = (a != b).nonzero()[:4].tolist() if a.shape == b.shape and a.dtype == b.dtype else []
            values = [(i, a[tuple(i)].item(), b[tuple(i)].item()) for i in where]
            problems.append(f"{pytree.keystr(path)}: {error}\n(index, got, want): {values}")
    assert not problems, "\n\n".join(problems)


def on_device(args: Sequence[Any]) -> list[Any]:
    """Copies of ``args`` on the device with the same strides, offsets and aliasing; leaves that require grad do."""
    storages: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "vulkan":
            return tensor
        source = tensor.detach()
        storage = source.untyped_storage()
        key = storage._cdata
        if key not in storages:
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            storages[key] = flat.to("vulkan")
        place = torch.empty(0, dtype=source.dtype, device="vulkan")
        place.set_(storages[key].untyped_storage(), source.storage_offset(), source.size(), source.stride())
        return place.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, move, list(args))


def copies(args: Sequence[Any]) -> list[Any]:
    """CPU copies of ``args`` that a reference may change in place: the same strides and aliasing."""
    storages: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.detach()
        key = source.untyped_storage()._cdata
        if key not in storages:
            storages[key] = torch.empty(0, dtype=torch.uint8).set_(source.untyped_storage()).clone()
        made = torch.empty(0, dtype=source.dtype)
        made.set_(storages[key].untyped_storage(), source.storage_offset(), source.size(), source.stride())
        return made.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, copy, list(args))


def check(
    f: Callable[..., Any], *args: Any, tolerance: dict[str, float] | None = None, expected: Any = None, **options: Any
) -> Any:
    """Compile ``f``, run it on device copies of ``args``, compare with CPU eager (or ``expected``); returns the
    compiled result."""
    want = f(*copies(args)) if expected is None else expected
    result = compiled(f, **options)(*on_device(args))
    same(result, want, **(tolerance or {}))
    return result


def dispatches(function: Callable[..., Any], *args: Any) -> int:
    """Kernels that one call of ``function``, already compiled, launches; none of them a CPU fallback."""
    function(*args)
    vkinductor.reset_stats()
    function(*args)
    stats = vkinductor.stats()
    assert not stats["fallbacks"], stats["fallbacks"]
    return int(stats["dispatches"])
