"""Tables of cosines and sines: computed once for all kernels that use them, where those are larger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cards import card, launched
from compiled import compiled, dispatches, on_device, same

from vkinductor.codegen import heuristics


def rotated(x: torch.Tensor, y: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = angles.cos()[None], angles.sin()[None]
    return (x * cos + x.flip(-1) * sin).sum(1), (y * cos - y.flip(-1) * sin).sum(2)


@pytest.fixture(autouse=True)
def no_caches() -> Iterator[None]:
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


def test_values_and_launches() -> None:
    x, y, angles = torch.randn(12, 20, 16), torch.randn(12, 20, 16), 100 * torch.randn(20, 16)
    for kept in (True, False):
        torch._dynamo.reset()
        with heuristics.override(tables=kept):
            f = compiled(rotated)
            same(f(*on_device([x, y, angles])), rotated(x, y, angles), atol=1e-3, rtol=1e-3)
            assert dispatches(f, *on_device([x, y, angles])) == 2 + kept


@pytest.mark.parametrize("heads", [1, 32])
def test_what_a_card_runs(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the tables alone computes sines; where nothing is larger than they, each does. Nothing runs."""
    kernels = launched(monkeypatch, card())
    given = [torch.empty(s, device="vulkan") for s in ((heads, 20, 16), (heads, 20, 16), (20, 16))]
    torch.compile(rotated, backend="vulkan", dynamic=False)(*given)
    kernels = list({kernel.name: kernel for kernel in kernels}.values())
    assert sum("vk_sin(" in kernel.glsl for kernel in kernels) == (1 if heads > 1 else 2)
