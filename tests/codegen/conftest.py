"""Fixtures of the code generation tests: every test compiles afresh, in this process, from the same seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import vkinductor


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore::vkinductor.device.fallback.VulkanFallbackWarning")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """No graph cache, no compiled frame of an earlier test, counters at zero, seed 0."""
    from torch._inductor import config

    torch._dynamo.reset()
    torch.manual_seed(0)
    vkinductor.reset_stats()
    with config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()
