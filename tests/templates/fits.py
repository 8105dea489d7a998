"""Where the GLSL library's polynomials come from: Remez exchange on the functions and intervals of the table below.

`python tests/templates/fits.py [NAME ...]` prints the coefficients, highest power first, as they stand in the library.
The forms for doubles are the same fits of higher degree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp

DIGITS = 50
TINY = mp.mpf("1e-15")


@dataclass(frozen=True)
class Fit:
    """A polynomial of `degree` near `function` on [low, high]; `weight` times its error is what is kept small.

    used_by: the library function that holds the coefficients; degree_double: degree of its form for doubles.
    """

    used_by: str
    function: Callable
    low: float
    high: float
    degree: int
    weight: Callable
    degree_double: int | None = None


def even(function: Callable, limit: float) -> Callable:
    """(function(x) / x - 1) / x^2 as a function of s = x^2; `limit` is its value at 0."""

    def of_square(s):
        x = mp.sqrt(s)
        return (function(x) / x - 1) / s if s > TINY else mp.mpf(limit)

    return of_square


def exp_tail(r):
    return (mp.expm1(r) - r) / r**2 if abs(r) > TINY else mp.mpf(1) / 2 + r / 6


def log_tail(f):
    return (mp.log1p(f) - f + f * f / 2) / f**3 if abs(f) > mp.mpf("1e-12") else mp.mpf(1) / 3 - f / 4


def cos_tail(s):
    return (mp.cos(mp.sqrt(s)) - 1 + s / 2) / s**2 if s > TINY else mp.mpf(1) / 24


def scaled_erfcx(t):
    """erfcx(x) (1 + 2x) where t = (x - 2) / (x + 2)."""
    if t > 1 - mp.mpf("1e-12"):
        return 2 / mp.sqrt(mp.pi)
    x = 2 * (1 + t) / (1 - t)
    if x < 50:
        return mp.exp(x * x) * mp.erfc(x) * (1 + 2 * x)
    series = 1 - 1 / (2 * x * x) + 3 / (4 * x**4) - 15 / (8 * x**6) + 105 / (16 * x**8)
    return series / (x * mp.sqrt(mp.pi)) * (1 + 2 * x)


def ratio(function: Callable, limit: Callable) -> Callable:
    """function(u) / u, `limit()` at 0."""
    return lambda u: function(u) / u if abs(u) > TINY else limit()


def ndtr(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def square(s):
    return s + mp.mpf("1e-9")


QUARTER = (mp.pi / 4 * 1.002) ** 2
HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.001")
ROOT_HALF, ROOT_TWO = mp.sqrt(0.5), mp.sqrt(2)

FITS: dict[str, Fit] = {
    "exp": Fit("vk_exp_tail", exp_tail, -HALF_LN2, HALF_LN2, 5, lambda r: abs(r) if r else 1, 10),
    "exp2": Fit(
        "vk_exp2_fraction",
        ratio(lambda r: mp.mpf(2) ** r - 1, lambda: mp.log(2)),
        -0.5005,
        0.5005,
        5,
        lambda r: abs(r) / mp.mpf(2) ** r,
    ),
    "log": Fit("vk_log_tail", log_tail, ROOT_HALF - 1, ROOT_TWO - 1, 8, lambda f: f * f),
    "atanh": Fit(
        "vk_log2_wide", even(mp.atanh, 1 / mp.mpf(3)), 0, (3 - 2 * ROOT_TWO) ** 2 * 1.001, 3, lambda s: s + 1e-6, 7
    ),
    "sin": Fit("vk_sin_poly", even(mp.sin, -1 / mp.mpf(6)), 0, QUARTER, 3, square, 6),
    "cos": Fit("vk_cos_poly", cos_tail, 0, QUARTER, 3, lambda s: s**2 + 1e-9, 6),
    "tanh": Fit("vk_tanh", even(mp.tanh, -1 / mp.mpf(3)), 0, 0.625**2, 5, square),
    "sinh": Fit("vk_sinh", even(mp.sinh, 1 / mp.mpf(6)), 0, 1, 3, square),
    "asin": Fit("vk_asin_tail", even(mp.asin, 1 / mp.mpf(6)), 0, 0.25, 5, square, 12),
    "atan": Fit("vk_atan_positive", even(mp.atan, -1 / mp.mpf(3)), 0, (ROOT_TWO - 1) ** 2 * 1.001, 4, square, 11),
    "erf": Fit(
        "vk_erf_small",
        lambda s: (mp.erf(mp.sqrt(s)) / mp.sqrt(s) if s > TINY else 2 / mp.sqrt(mp.pi)) - 1,
        0,
        1,
        7,
        lambda s: mp.mpf(1),
        13,
    ),
    "erf_far": Fit("vk_erf", lambda x: -mp.log(mp.erfc(x), 2), 1, 4, 7, lambda x: mp.erfc(x)),
    # Of the result down to 2^-25.
    "gelu": Fit("vk_gelu", lambda a: -mp.log(ndtr(-a), 2), 0, 5.5, 5, lambda a: min(1, mp.mpf(2) ** 13 * a * ndtr(-a))),
    "erfcx": Fit("vk_erfcx_positive", scaled_erfcx, -1, 1, 12, lambda t: 1 / abs(scaled_erfcx(t)), 26),
    "lgamma_one": Fit(
        "vk_lgamma_positive",
        ratio(lambda u: mp.loggamma(1 + u), lambda: -mp.euler),
        -0.5,
        0.5,
        14,
        lambda u: 1 / abs(ratio(lambda v: mp.loggamma(1 + v), lambda: -mp.euler)(u)),
    ),
    "lgamma_two": Fit(
        "vk_lgamma_positive",
        ratio(lambda u: mp.loggamma(2 + u), lambda: 1 - mp.euler),
        -0.5,
        0.5,
        8,
        lambda u: 1 / abs(ratio(lambda v: mp.loggamma(2 + v), lambda: 1 - mp.euler)(u)),
        20,
    ),
}


def remez(fit: Fit, double: bool = False) -> tuple[list, mp.mpf]:
    """(coefficients from the constant up, largest weighted error)."""
    degree = fit.degree_double if double and fit.degree_double else fit.degree
    low, high = mp.mpf(fit.low), mp.mpf(fit.high)
    centre, radius, points = (low + high) / 2, (high - low) / 2, degree + 2
    grid = [centre - radius * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / (40 * points)) for i in range(40 * points)]
    grid = [low + 2 * radius * mp.mpf("1e-12"), *grid, high - 2 * radius * mp.mpf("1e-12")]
    values = [fit.function(x) for x in grid]
    weights = [fit.weight(x) + mp.mpf("1e-9") for x in grid]
    nodes = [centre - radius * mp.cos(mp.pi * i / (points - 1)) for i in range(points)]
    best: tuple[list, mp.mpf] = ([], mp.inf)
    for _ in range(60):
        matrix, right = mp.matrix(points, points), mp.matrix(points, 1)
        for i, node in enumerate(nodes):
            x = min(max(node, grid[0]), grid[-1])
            for power in range(degree + 1):
                matrix[i, power] = x**power
            matrix[i, degree + 1] = (-1) ** i / (fit.weight(x) + mp.mpf("1e-9"))
            right[i] = fit.function(x)
        solved = mp.lu_solve(matrix, right)
        coefficients = [solved[power] for power in range(degree + 1)]
        error = [w * (mp.polyval(coefficients[::-1], x) - v) for x, v, w in zip(grid, values, weights, strict=True)]
        largest = max(map(abs, error))
        if largest < best[1]:
            best = (coefficients, largest)
        extremes, start = [], 0
        for i in range(1, len(grid) + 1):
            if i == len(grid) or (error[i] > 0) != (error[start] > 0):
                extremes.append(max(range(start, i), key=lambda at: abs(error[at])))
                start = i
        while len(extremes) > points:
            extremes.pop(0 if abs(error[extremes[0]]) < abs(error[extremes[-1]]) else -1)
        if len(extremes) < points or largest < abs(solved[degree + 1]) * mp.mpf("1.02"):
            break
        nodes = [grid[i] for i in extremes]
    return best


def main(names: list[str], table: dict[str, Fit]) -> None:
    with mp.workdps(DIGITS):
        for name in names:
            for double in (False, True) if table[name].degree_double else (False,):
                coefficients, error = remez(table[name], double)
                print(f"{name}{' (double)' if double else ''}: error {mp.nstr(error, 3)}")
                for coefficient in reversed(coefficients):
                    print(f"    {float(coefficient):.17e}" if double else f"    {float(coefficient):.9e}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(FITS), FITS)
