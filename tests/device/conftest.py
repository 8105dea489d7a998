"""Tests of the torch device on its own: operators run on the CPU fallback, and do not clutter the output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vkinductor.device import hooks, registration
from vkinductor.device.registry import registry

registration.register()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore::vkinductor.device.fallback.VulkanFallbackWarning")


@pytest.fixture(autouse=True)
def without_compiler() -> Iterator[None]:
    """Take the compiler of single operators out: it belongs to a higher layer, which tests it."""
    device = registry.open()  # opening is when a higher layer plugs itself in
    previous = hooks.set_compile_op(None)
    yield
    if registry.current() is device:  # else its programs are of a device that was closed
        hooks.set_compile_op(previous)
