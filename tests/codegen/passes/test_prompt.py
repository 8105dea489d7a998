"""A decoder's layer over many rows, as a card runs it: how many kernels, and what they are. Nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cards import card, pretend

from vkinductor.codegen import launch, scheduling

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[launch.Kernel]:
    """What is launched instead of run."""
    found: list[launch.Kernel] = []
    pretend(monkeypatch, card())
    monkeypatch.setattr(launch, "prefetch", lambda kernel: None)
    monkeypatch.setattr(scheduling, "prefetch_definition", lambda *args: None)
    monkeypatch.setattr(launch.Kernel, "_first_run", lambda self, *args: found.append(self))
    return found


def test_a_layer_of_a_prompt(kernels: list[launch.Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values; queries turned; keys turned, both to the cache; attention; out; residual and norm; gate
    and up; their product; down; residual and norm. Parts of sums are added up by what uses them."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.llama import Llama, Shape

    counts, sines = [], 0
    for layers in (2, 3):
        torch._dynamo.reset()
        kernels.clear()
        model = Llama(Shape(layers, 512, 8, 2, 1408, 256), 256).eval().to("vulkan")
        tokens, positions = torch.zeros(1, 256, dtype=torch.long, device="vulkan"), torch.arange(256, device="vulkan")
        with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
            torch.compile(model, backend="vulkan", dynamic=False, options={"recording": False})(tokens, positions)
        counts.append(len(kernels))
        sines = sum("vk_sin(" in kernel.glsl for kernel in kernels)
    assert counts[1] - counts[0] <= 10
    assert sines == 1
    products = [kernel for kernel in kernels if "MULTIPLY_ADD" in kernel.glsl and "row_maximum" not in kernel.glsl]
    assert sum("n0 < " in kernel.glsl for kernel in products) == 2 * 3
