"""Opening, closing and opening again; and addresses that no CPU may follow."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from vkinductor.device.registry import registry
from vkinductor.runtime import context

POISONED = """
import torch, vkinductor
from vkinductor.device.registry import registry
x = torch.randn(5, 6)
d = x.to("vulkan")
assert registry.open().memory.bias == 1 << 62
assert d.data_ptr() > 1 << 62
d.t()[1:].copy_(d.t()[:-1] * 2)
x.t()[1:].copy_(x.t()[:-1].clone() * 2)
assert torch.equal(d.cpu(), x) and torch.equal(d.half().t().contiguous().cpu(), x.half().t())
print("same")
"""


def test_opens_again_after_the_runtime_was_closed() -> None:
    old = torch.ones(3, device="vulkan")
    device = registry.open()
    context.reset()
    assert registry.current() is None
    assert not torch.vulkan.is_initialized()
    assert torch.vulkan.memory_stats() == {}
    del old
    assert torch.full((3, 2), 2.0, device="vulkan").t().contiguous().cpu().tolist() == [[2] * 3] * 2
    assert registry.open() is not device


def test_reset() -> None:
    torch.vulkan.manual_seed(3)
    registry.reset()
    assert registry.generator is None
    assert torch.ones(2, device="vulkan").cpu().tolist() == [1, 1]


def test_poisoned_addresses() -> None:
    done = subprocess.run(
        [sys.executable, "-c", POISONED],
        env={**os.environ, "VKINDUCTOR_POISON": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "same\n", done.stderr
