"""Tests of the Dynamo backend: a function runs eagerly on the CPU and compiled for Vulkan, and both must agree."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import vkinductor
from vkinductor.offload.mirrors import mirrors


@pytest.fixture(scope="session", autouse=True)
def modules_stay() -> None:
    """What is imported by now is left out of the collection after each test: 240 ms, 60 without it."""
    import torch._inductor.compile_fx
    import torch._inductor.lowering  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """No compiled code and no mirrors of another test."""
    torch._dynamo.reset()
    mirrors.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    mirrors.clear()
    gc.collect()


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a tree."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def versions(value: Any) -> list[int]:
    """The version counters of the tensors in a tree that have one."""
    return [t._version for t in tensors(value) if not t.is_inference()]


def compile_(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """torch.compile for Vulkan, whole graphs only unless told otherwise."""
    return torch.compile(f, **{"backend": "vulkan", "fullgraph": True, **options})


def close(actual: Any, expected: Any) -> None:
    """Same structure, numbers, dtypes, strides, devices and need of a gradient."""
    mine, theirs = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(mine) == len(theirs)
    for a, e in zip(mine, theirs, strict=True):
        if not isinstance(e, torch.Tensor):
            assert type(a) is type(e)
            assert a == pytest.approx(e)
            continue
        assert a.device == e.device
        assert a.requires_grad == e.requires_grad
        torch.testing.assert_close(a, e, check_stride=e.numel() > 1)


@pytest.fixture
def agree() -> Callable[..., Any]:
    """agree(f, make_args, **options): f run eagerly and compiled on arguments made twice; results and what became of
    the arguments are the same. Returns the compiled function and its arguments."""

    def run(f: Callable[..., Any], make_args: Callable[[], tuple[Any, ...]], calls: int = 1, **options: Any) -> Any:
        torch.manual_seed(1)
        expected_args = make_args()
        torch.manual_seed(1)
        actual_args = make_args()
        compiled = compile_(f, **options)
        for _ in range(calls):
            before = versions(actual_args), versions(expected_args)
            expected = f(*expected_args)
            actual = compiled(*actual_args)
            close(actual, expected)
            close([t.detach() for t in tensors(actual_args)], [t.detach() for t in tensors(expected_args)])
            after = versions(actual_args), versions(expected_args)
            mine, theirs = ([x != y for x, y in zip(*pair, strict=True)] for pair in zip(before, after, strict=True))
            assert mine == theirs  # the same arguments were written
        return compiled, actual_args

    return run


@pytest.fixture
def train() -> Callable[..., Any]:
    """train(module, make_args, **options): loss, outputs and gradients, compiled on a copy, equal those of eager."""

    def run(module: torch.nn.Module, make_args: Callable[[], tuple[Any, ...]], steps: int = 1, **options: Any) -> Any:
        twin = copy.deepcopy(module)
        compiled = compile_(twin, **options)
        for _ in range(steps):
            torch.manual_seed(1)
            expected_args = make_args()
            torch.manual_seed(1)
            actual_args = make_args()
            expected, actual = module(*expected_args), compiled(*actual_args)
            close(actual, expected)
            for out in (expected, actual):
                sum(t.pow(2).sum() for t in tensors(out) if t.requires_grad).backward()
            close([t.grad for t in tensors(actual_args)], [t.grad for t in tensors(expected_args)])
            for (name, mine), theirs in zip(twin.named_parameters(), module.parameters(), strict=True):
                assert (mine.grad is None) == (theirs.grad is None), name
                if mine.grad is not None:
                    torch.testing.assert_close(mine.grad, theirs.grad, msg=lambda m, n=name: f"{n}: {m}")
            close(list(twin.buffers()), list(module.buffers()))
        return twin, compiled

    return run


@pytest.fixture
def counted() -> Callable[..., Any]:
    """counted(f, *args) -> (result, counters of this call)."""

    def run(f: Callable[..., Any], *args: Any) -> tuple[Any, dict[str, Any]]:
        vkinductor.reset_stats()
        result = f(*args)
        return result, vkinductor.stats()

    return run
