"""Philox against its own definition, and the distributions made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

MASK = 0xFFFFFFFF


def philox(seed: int, offset: int) -> list[int]:
    """Philox 4x32-10 in Python, from the paper: counter (offset, 0, 0), key seed."""
    c = [offset & MASK, offset >> 32 & MASK, 0, 0]
    key = [seed & MASK, seed >> 32 & MASK]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ key[0], second & MASK, first >> 32 ^ c[3] ^ key[1], first & MASK]
        key = [key[0] + 0x9E3779B9 & MASK, key[1] + 0xBB67AE85 & MASK]
    return c


def test_the_definition_gives_the_published_numbers():
    """The known answers that accompany the paper's Random123 library, for an all-zero and an all-one counter
    and key."""
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.fixture
def counters(rng) -> tuple[np.ndarray, np.ndarray]:
    seed = rng.integers(-(2**63), 2**63 - 1, 500)
    offset = np.concatenate([np.arange(250), rng.integers(0, 2**63 - 1, 250)])
    return seed, offset


@pytest.mark.parametrize("word", range(4))
def test_philox(evaluate, counters, word):
    seed, offset = counters
    got = evaluate(f"vk_philox(uint64_t(a), uint64_t(b))[{word}]", seed, offset, out=np.uint32)
    want = [philox(s % 2**64, o)[word] for s, o in zip(seed.tolist(), offset.tolist(), strict=True)]
    assert got.tolist() == want


def stream(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(n, 1234567), np.arange(n)


def test_uniform(evaluate):
    n = 100000
    x = evaluate("vk_rand(a, b)", *stream(n))
    assert 0 <= x.min() <= x.max() < 1
    assert abs(x.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
    histogram = np.histogram(x, 20, (0, 1))[0]
    assert ((histogram - n / 20) ** 2 / (n / 20)).sum() < 60  # 19 degrees of freedom


def test_uniform_never_reaches_one(evaluate):
    word = np.array([0x7FFFFFFF, 0x80000000, 0, 0xFFFFFFFF], np.uint32)
    x = evaluate("vk_uniform(a)", word)
    assert 0 == x.min() <= x.max() < 1


def test_normal(evaluate):
    n = 100000
    x = evaluate("vk_randn(a, b)", *stream(n)).astype(np.float64)
    assert np.isfinite(x).all()
    for power, moment in enumerate([0, 1, 0, 3], start=1):
        assert abs((x**power).mean() - moment) < 5 * math.sqrt((x ** (2 * power)).mean() / n)


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-5, 6), (-(2**62), 2**62), (7, 8)])
def test_integers(evaluate, low, high):
    n = 20000
    bounds = np.full(n, low), np.full(n, high)
    x = evaluate("vk_randint64(a, b, c, d)", *stream(n), *bounds, out=np.int64)
    assert low <= x.min() <= x.max() < high
    if high - low < 100:
        counts = np.bincount(x - low, minlength=high - low)
        assert abs(counts - n / (high - low)).max() < 6 * math.sqrt(n)
