"""Operators that are one function of the library: greatest common divisors, least common multiples."""

from __future__ import annotations

import pytest
import torch
from compiled import SIGNED, check, name_of, on_device, same

import vkinductor


@pytest.mark.parametrize("dtype", [*SIGNED, torch.uint8], ids=name_of)
def test_gcd(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    ends = torch.tensor([0, 1, info.max, info.max - 1, info.min + 1], dtype=dtype)
    # Not the lowest integer: the CPU says that gcd(1, info.min) is -1.
    spread = torch.randint(max(info.min + 1, -5000), min(info.max, 5000), (40,)).to(dtype)
    a = torch.cat([ends, spread // 6 * 6])
    b = torch.cat([ends.flip(0), torch.randint(0, 60, (40,)).to(dtype) * 2])[:, None]
    check(torch.gcd, a, b)
    same(torch.gcd(*on_device([a, b])), torch.gcd(a, b))
    assert not vkinductor.stats()["fallbacks"]


def test_lcm() -> None:
    a, b = torch.arange(-9, 9), torch.arange(12)[:, None]
    check(torch.lcm, a, b)
    same(torch.lcm(*on_device([a, b])), torch.lcm(a, b))
    assert not vkinductor.stats()["fallbacks"]
