"""Incomplete gamma, zeta, polygamma, Airy and spherical Bessel functions and the orthogonal polynomials, in floats and
doubles, against mpmath."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from samples import uniform
from series_igamma import table

from vkinductor.templates import library
from vkinductor.templates.catalog import FUNCTIONS

CASES = {
    "spherical_bessel_j0": (lambda x: mpmath.sinc(x), [(-20, 20)]),
    "airy_ai": (mpmath.airyai, [(-80, -2), (-4, 2), (0, 9)]),
    "zeta": (mpmath.zeta, [((1, 9), (0, 9)), ((1, 1.1), (0, 9)), ((9, 60), (0.3, 3)), ((1.5, 4), (9, 1e4))]),
    "igamma": (
        lambda a, x: mpmath.gammainc(a, 0, x, regularized=True),
        [((0, 20), (0, 30)), ((0, 2), (0, 2)), ((20, 150), (10, 200)), ((90, 110), (90, 110)), ((0, 0.01), (0, 3))],
    ),
    "igammac": (
        lambda a, x: mpmath.gammainc(a, x, mpmath.inf, regularized=True),
        [((0, 20), (0, 30)), ((0, 2), (0, 2)), ((20, 150), (10, 200)), ((90, 110), (90, 110)), ((0, 0.01), (0, 3))],
    ),
}
WHOLE = np.arange(1, 6)
POLYNOMIALS = sorted(name for name in FUNCTIONS if "_polynomial_" in name)
EDGES = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.5, 7.0, math.inf, -math.inf, math.nan])


def dtypes(device) -> list[type]:
    return [np.float32, np.float64] if device.info.features.float64 else [np.float32]


def excess(name: str, dtype: type, got: np.ndarray, exact, *arrays: np.ndarray) -> tuple[float, list[float]]:
    """The largest error over what the catalog allows, and where it is."""
    function = FUNCTIONS[name]
    worst, where = 0.0, []
    for i, values in enumerate(zip(*arrays, strict=True)):
        with mpmath.workprec(200):
            want = mpmath.re(exact(*map(mpmath.mpf, map(float, values))))
            off = float(abs(mpmath.mpf(float(got[i])) - want))
        if dtype is np.float32:
            allowed = max(function.absolute, function.ulp * float(np.spacing(np.float32(abs(want)))))
        else:
            allowed = max(1e-13 if function.absolute else 0.0, 1e-14 * abs(float(want)) + 1e-300)
        if off / allowed > worst:
            worst, where = off / allowed, [*map(float, values), float(got[i]), float(want)]
    return worst, where


@pytest.mark.parametrize("name", sorted(CASES))
def test_within_the_bound(evaluate, device, rng, name):
    exact, runs = CASES[name]
    for dtype in dtypes(device):
        parts = [[uniform(rng, *r, 60, dtype) for r in (run if isinstance(run[0], tuple) else (run,))] for run in runs]
        arrays = [np.concatenate(column) for column in zip(*parts, strict=True)]
        call = f"{FUNCTIONS[name].spelling(dtype is np.float64)}({', '.join('ab'[: len(arrays)])})"
        worst, where = excess(name, dtype, evaluate(call, *arrays, out=dtype), exact, *arrays)
        assert worst <= 1, (dtype, worst, where)


def test_polygamma(evaluate, device, rng):
    for dtype in dtypes(device):
        x = np.concatenate(
            [uniform(rng, 0, 4, 40, dtype), uniform(rng, 4, 80, 30, dtype), uniform(rng, -6, 0, 40, dtype)]
        )
        n = rng.choice(WHOLE, len(x)).astype(dtype)
        got = evaluate(f"{FUNCTIONS['polygamma'].spelling(dtype is np.float64)}(a, b)", n, x, out=dtype)
        # Beside a zero between two poles only the size of the terms can be promised.
        size = [float(mpmath.psi(int(k), max(abs(v - round(float(v))), 1e-3))) for k, v in zip(n, x, strict=True)]
        want = np.array([float(mpmath.re(mpmath.psi(int(k), float(v)))) for k, v in zip(n, x, strict=True)])
        error = np.abs(got - want) / np.maximum(np.abs(want), np.where(x < 0, np.abs(size), 0))
        assert error.max() < (16 * 2**-23 if dtype is np.float32 else 1e-14), (x[error.argmax()], n[error.argmax()])


@pytest.mark.parametrize("name", ["zeta", "igamma", "igammac"])
def test_edges_of_two_arguments(evaluate, name):
    a, b = (grid.ravel().astype(np.float32) for grid in np.meshgrid(EDGES, EDGES))
    got = evaluate(f"{FUNCTIONS[name].name}(a, b)", a, b)
    peer = getattr(torch, name, None) or getattr(torch.special, name)
    want = peer(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    # Where torch gives NaN for zeta(2, inf) and zeta(inf, 2) the limit 0 is as good.
    better = (name == "zeta") & np.isnan(want) & (got == 0) & (np.isinf(a) | np.isinf(b))
    # zeta(7, -3.5) is what is left of terms of 128.
    wrong = ~np.isclose(got, want, rtol=1e-5, atol=np.where(b < 0, 2e-5, 1e-6), equal_nan=True) & ~better
    assert not wrong.any(), [*zip(a[wrong], b[wrong], got[wrong], want[wrong], strict=True)]


def terms(name: str, n: int) -> np.ndarray:
    """The coefficients of one polynomial, from the constant up."""
    x = np.polynomial.Polynomial([-1, 2] if name.startswith("shifted") else [0, 1])
    first = {"t": x, "u": 2 * x, "v": 2 * x - 1, "w": 2 * x + 1, "h": 2 * x, "he": x, "p": x, "l": 1 - x}
    kind = name.rpartition("_")[2]
    p, q = np.polynomial.Polynomial([1.0]), first[kind]
    for k in range(1, n):
        following = {
            "h": 2 * x * q - 2 * k * p,
            "he": x * q - k * p,
            "p": ((2 * k + 1) * x * q - k * p) / (k + 1),
            "l": ((2 * k + 1 - x) * q - k * p) / (k + 1),
        }.get(kind, 2 * x * q - p)
        p, q = q, following
    return (p if n == 0 else q).coef


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(evaluate, device, rng, name):
    for dtype in dtypes(device):
        x = np.concatenate(
            [uniform(rng, -1.2, 1.2, 300, dtype), uniform(rng, -9, 9, 300, dtype), dtype([1, -1, 0, 0.5])]
        )
        n = rng.integers(0, 13, len(x))
        got = evaluate(f"{FUNCTIONS[name].spelling(dtype is np.float64)}(a, b)", x, (n + 0.75).astype(dtype), out=dtype)
        wide = x.astype(np.longdouble)
        want, size = np.empty_like(wide), np.empty(len(x))
        for k in range(13):
            chosen, coefficients = n == k, terms(name, k)[::-1]
            want[chosen] = np.polyval(coefficients.astype(np.longdouble), wide[chosen])
            size[chosen] = np.polyval(abs(coefficients), abs(x[chosen].astype(np.float64)))
        error = np.abs(got - want) / size
        bound = FUNCTIONS[name].ulp * (2.0**-23 if dtype is np.float32 else 2.0**-50)
        assert error.max() < bound, (dtype, n[error.argmax()], x[error.argmax()], error.max() / bound)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_degrees_as_torch_has_them(evaluate, name):
    x = np.repeat(np.float32([0.25, -1, 1, 0, 1.5, math.nan]), 5)
    n = np.tile(np.float32([-1, -0.5, 0, 20, 40]), 6)
    got = evaluate(f"{FUNCTIONS[name].name}(a, b)", x, n)
    want = getattr(torch.special, name)(torch.from_numpy(x).double(), torch.from_numpy(n).double()).numpy()
    wrong = ~np.isclose(got, want, rtol=3e-4, atol=1e-5 * (1 + np.nanmax(np.abs(want[np.abs(x) < 1]))), equal_nan=True)
    wrong &= ~(np.isnan(x) & (n > 1))  # torch gives whatever it began with
    assert not wrong.any(), [*zip(x[wrong], n[wrong], got[wrong], want[wrong], strict=True)]


@pytest.mark.parametrize("double", [False, True])
def test_the_library_holds_the_series(double):
    text = library(["vk_igamma_f64" if double else "vk_igamma"])
    for series in table(double):
        for value in series:
            assert (f"{abs(float(value)):.17e}lf" if double else f"{abs(float(value)):.9e}") in text
