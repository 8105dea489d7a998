"""Fixtures of the inspection tests: nothing compiled before, no graph cache, one seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import vkinductor


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    vkinductor.reset_stats()
    yield
    torch._dynamo.reset()
