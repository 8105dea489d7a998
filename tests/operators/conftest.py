"""Registered operators stay for the process: each test declares its own, under names that no other test has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

import vkinductor

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    vkinductor.reset_stats()
    yield
    torch._dynamo.reset()


@pytest.fixture
def name() -> Callable[[], str]:
    """A function that makes names of operators."""
    return lambda: f"vkinductor_operators::op{next(_numbers)}"
