"""Tests of the torch device: it is registered, and operators that run on the CPU do not clutter the output."""

from __future__ import annotations

import pytest

from vkinductor.device import registration

registration.register()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore::vkinductor.device.fallback.VulkanFallbackWarning")
