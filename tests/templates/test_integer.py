"""Integer functions against Python's own integers, at every width and at its edges."""

from __future__ import annotations

import operator

import numpy as np
import pytest

TYPES = (np.int32, np.uint32, np.int64, np.uint64)


def values(rng: np.random.Generator, dtype: type) -> np.ndarray:
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2, 3, 7, 10]
    edges += [-1, -2, -3, -7, -10] if info.min else []
    # Of every magnitude, not only of the largest.
    wide = rng.integers(info.min, info.max, 60, dtype, endpoint=True) >> rng.integers(0, info.bits - 1, 60).astype(
        dtype
    )
    return np.concatenate([np.array(edges, dtype), wide])


def wrapped(value: int, dtype: type) -> int:
    info = np.iinfo(dtype)
    return (value - info.min) % (1 << info.bits) + info.min


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


OPERATIONS = {
    "floordiv": operator.floordiv,
    "truncdiv": truncated,
    "remainder": operator.mod,
    "fmod": lambda a, b: a - truncated(a, b) * b,
}


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_division(evaluate, rng, name, dtype):
    first, second = np.meshgrid(values(rng, dtype), values(rng, dtype))
    a, b = first.ravel(), second.ravel()
    got = evaluate(f"vk_{name}(a, b)", a, b, out=dtype)
    for x, y, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        want = wrapped(OPERATIONS[name](x, y), dtype) if y else 0
        assert z == want, (x, y)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
def test_power(evaluate, rng, dtype):
    info = np.iinfo(dtype)
    base = values(rng, dtype)
    exponent = np.array([0, 1, 2, 3, 5, 31, 64, 100] + ([-1, -2, -3] if info.min else []), dtype)
    first, second = np.meshgrid(base, exponent)
    a, b = first.ravel(), second.ravel()
    got = evaluate("vk_ipow(a, b)", a, b, out=dtype)
    for x, n, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        want = pow(x, n, 1 << info.bits) if n >= 0 else {1: 1, -1: 1 if n % 2 == 0 else -1}.get(x, 0)
        assert z == wrapped(want, dtype), (x, n)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_shifts(evaluate, rng, dtype, width):
    info = np.iinfo(dtype)
    if width > info.bits:
        pytest.skip("wider than the type")
    first, second = np.meshgrid(values(rng, dtype), np.array([-1, 0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 1000], np.int32))
    a, n = first.ravel(), second.ravel()
    left = evaluate(f"vk_shl(a, b, {width})", a, n, out=dtype)
    right = evaluate(f"vk_shr(a, b, {width})", a, n, out=dtype)
    for x, count, up, down in zip(a.tolist(), n.tolist(), left.tolist(), right.tolist(), strict=True):
        inside = 0 <= count < width
        assert up == (wrapped(x << count, dtype) if inside else 0), (x, count)
        if inside:
            assert down == x >> count, (x, count)
        elif width == info.bits:
            assert down == (-1 if x < 0 else 0), (x, count)
