"""Arguments that find faults: every magnitude, the edges of a format, and dense runs where functions change
their method."""

from __future__ import annotations

import numpy as np

_SPECIAL = [0.0, 1.0, 0.5, 2.0, 3.0, 1.5, 2.5, 10.0, 16777215.0, 16777217.0, 1e10, 1e-10, np.inf]
_EDGES = {
    np.float32: [
        1e-45,
        1.1754942e-38,
        1.17549435e-38,
        3.4028235e38,
        88.72283,
        88.72284,
        103.97,
        104.1,
        89.5,
        9.3,
        17.4,
    ],
    np.float64: [
        5e-324,
        2.2250738585072014e-308,
        1.7976931348623157e308,
        709.78,
        709.79,
        745.1,
        745.2,
        9007199254740993.0,
    ],
}


def special(dtype: type = np.float32) -> np.ndarray:
    """Zeros, infinities, NaN, subnormals, the largest number, whole and half numbers; both signs."""
    values = np.array([*_SPECIAL, *_EDGES[dtype]], dtype)
    return np.concatenate([values, -values, np.array([np.nan], dtype)])


def any_bits(rng: np.random.Generator, n: int, dtype: type = np.float32) -> np.ndarray:
    """Random bit patterns: all exponents are equally likely, one in 256 (2048) is NaN or infinite."""
    word = np.uint32 if dtype is np.float32 else np.uint64
    return rng.integers(0, np.iinfo(word).max, n, word, endpoint=True).view(dtype)


def uniform(rng: np.random.Generator, low: float, high: float, n: int, dtype: type = np.float32) -> np.ndarray:
    """Uniform in [low, high)."""
    return rng.uniform(low, high, n).astype(dtype)


def near(
    rng: np.random.Generator, centre: float, n: int, dtype: type = np.float32, low: float = -7, high: float = 0
) -> np.ndarray:
    """Around `centre`, at distances of 10^low to 10^high on both sides."""
    return (centre + 10.0 ** rng.uniform(low, high, n) * rng.choice([-1.0, 1.0], n)).astype(dtype)


def pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every value with every other."""
    first, second = np.meshgrid(values, values)
    return first.ravel(), second.ravel()


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Errors of float32 `got` against float64 `want` in units in the last place; 0 where either is not
    finite.

    Below the normal range the unit is that of the smallest normal number over 2^23, the spacing of
    subnormals.
    """
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(want), np.finfo(np.float32).tiny).astype(np.float32)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - want) / unit
    return np.where(np.isfinite(got) & np.isfinite(want.astype(np.float32)), error, 0.0)


class Subnormals:
    """Whether the device keeps float32 subnormals (conftest.py finds out): Vulkan lets it flush them to zero."""

    kept = True


def may_be_flushed(*arrays: np.ndarray) -> np.ndarray:
    """Where a device that flushes subnormals is free to answer as it likes: one is an argument or the result."""
    if Subnormals.kept:
        return np.zeros(len(arrays[0]), bool)
    smallest = np.finfo(np.float32).tiny
    tiny = [(np.abs(a) < 1.001 * smallest) & (a != 0) for a in arrays if a.dtype.kind == "f" and a.itemsize >= 4]
    return np.logical_or.reduce(tiny)
