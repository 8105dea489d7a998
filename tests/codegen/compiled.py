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


def copies(args: Sequence[Any]) -> list[Any]:
    """Arguments that a function under test may change in place; strides and dtypes stay."""
    made = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            made.append(arg.detach().clone(memory_format=torch.preserve_format).requires_grad_(arg.requires_grad))
        else:
            made.append(arg)
    return made


def check(
    f: Callable[..., Any], *args: Any, tolerance: dict[str, float] | None = None, expected: Any = None, **options: Any
) -> Any:
    """Compile ``f``, run it on ``args``, compare with eager (or ``expected``); returns the compiled result."""
    want = f(*copies(args)) if expected is None else expected
    result = compiled(f, **options)(*args)
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
