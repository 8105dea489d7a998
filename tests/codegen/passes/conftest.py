"""Shared by the tests of graph passes."""

from __future__ import annotations

import pytest
import torch

from vkinductor.codegen import passes


@pytest.fixture
def matches(monkeypatch: pytest.MonkeyPatch) -> list[passes.Match]:
    """What the passes have found since the test began."""
    found: list[passes.Match] = []
    original = passes.run

    def run(module: torch.fx.GraphModule) -> None:
        original(module)
        found.extend(module.meta[passes.MATCHES])

    monkeypatch.setattr(passes, "run", run)
    return found
