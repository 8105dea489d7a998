"""Seeds, states, and operators that draw."""

from __future__ import annotations

import pytest
import torch

from vkinductor.device import random
from vkinductor.runtime import stats

DEVICE = "vulkan"


def test_manual_seed_repeats() -> None:
    torch.manual_seed(5)
    first = torch.rand(10, device=DEVICE), torch.randn(3, 3, device=DEVICE), torch.randint(0, 99, (5,), device=DEVICE)
    torch.manual_seed(5)
    again = torch.rand(10, device=DEVICE), torch.randn(3, 3, device=DEVICE), torch.randint(0, 99, (5,), device=DEVICE)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, again, strict=False))
    assert not torch.equal(torch.rand(10, device=DEVICE).cpu(), first[0].cpu())


def test_the_cpu_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    torch.rand(3, device=DEVICE)
    torch.nn.functional.dropout(torch.ones(100, device=DEVICE), 0.5)
    torch.randperm(10, device=DEVICE)
    assert torch.equal(torch.rand(3), expected)


def test_device_seed_and_state() -> None:
    torch.vulkan.manual_seed(7)
    assert torch.vulkan.initial_seed() == 7
    state = torch.vulkan.get_rng_state()
    assert state.dtype is torch.uint8
    a = torch.rand(4, device=DEVICE).cpu()
    torch.vulkan.set_rng_state(state)
    assert torch.equal(torch.rand(4, device=DEVICE).cpu(), a)
    torch.vulkan.set_rng_state_all([state])
    assert torch.equal(torch.rand(4, device=DEVICE).cpu(), a)
    assert len(torch.vulkan.get_rng_state_all()) == 1
    torch.vulkan.seed()
    assert not torch.equal(torch.rand(4, device=DEVICE).cpu(), a)
    torch.vulkan.manual_seed_all(7)
    assert torch.equal(torch.rand(4, device=DEVICE).cpu(), a)


def test_fork_rng() -> None:
    torch.vulkan.manual_seed(3)
    with torch.random.fork_rng(devices=[0], device_type=DEVICE):
        inside = torch.rand(3, device=DEVICE).cpu()
    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), inside)


def test_own_generator() -> None:
    a = torch.rand(5, device=DEVICE, generator=torch.Generator().manual_seed(9))
    b = torch.empty(5, device=DEVICE).uniform_(generator=torch.Generator().manual_seed(9))
    assert torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize("name", random.OVERWRITE)
def test_fills_without_fallback(name: str) -> None:
    method = name.partition(".")[0]
    arguments = {"random_.from": (3, 9), "random_.to": (9,), "geometric_": (0.5,), "bernoulli_.float": (0.25,)}
    before = dict(stats.counters.fallbacks)
    torch.vulkan.manual_seed(2)
    tensor = torch.zeros(50, 4, device=DEVICE).t()
    assert getattr(tensor, method)(*arguments.get(name, ())) is tensor
    expected = getattr(torch.zeros(4, 50), method)(*arguments.get(name, ()), generator=torch.Generator().manual_seed(2))
    assert torch.equal(tensor.cpu(), expected)
    assert stats.counters.fallbacks == before


def test_other_random_operators() -> None:
    def draw() -> list[torch.Tensor]:
        torch.vulkan.manual_seed(4)
        p = torch.full((6,), 0.5, device=DEVICE)
        drawn = [
            torch.randperm(20, device=DEVICE),
            torch.bernoulli(p),
            torch.multinomial(p, 3),
            torch.normal(p, 1.0),
            torch.poisson(p * 9),
            torch.nn.functional.dropout(torch.ones(50, device=DEVICE), 0.5),
            torch.nn.functional.rrelu(-torch.ones(5, device=DEVICE), training=True),
            torch.randn_like(p),
            torch.rand_like(p),
        ]
        return [tensor.cpu() for tensor in drawn]

    first, second = draw(), draw()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=False))
    assert sorted(first[0].tolist()) == list(range(20))
    assert 0 < (first[5] == 0).sum() < 50
