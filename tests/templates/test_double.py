"""The functions for doubles against mpmath: relative error below 1e-14, infinities and NaN as torch has
them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from samples import any_bits, near, pairs, special, uniform

from vkinductor.templates.catalog import FUNCTIONS

RELATIVE = 1e-14
ABSOLUTE = 1e-13  # for the functions that the catalog gives an absolute bound
N = 150


@pytest.fixture(autouse=True)
def needs_doubles(device):
    if not device.info.features.float64:
        pytest.skip("the device has no float64")


def run(low: float, high: float, n: int = N):
    return lambda rng: uniform(rng, low, high, n, np.float64)


def around(centre: float, low: float = -15):
    return lambda rng: near(rng, centre, N, np.float64, low=low)


# operator -> exact function, torch's function, dense runs
UNARY = {
    "exp": (mpmath.exp, torch.exp, [run(-750, 710), run(-1, 1)]),
    "exp2": (lambda x: mpmath.mpf(2) ** x, torch.exp2, [run(-1080, 1030), run(-1, 1)]),
    "expm1": (mpmath.expm1, torch.expm1, [run(-40, 710), run(-1, 1), around(0)]),
    "log": (mpmath.log, torch.log, [run(0, 3), around(1)]),
    "log2": (lambda x: mpmath.log(x, 2), torch.log2, [run(0, 3), around(1)]),
    "log10": (mpmath.log10, torch.log10, [run(0, 3), around(1)]),
    "log1p": (mpmath.log1p, torch.log1p, [run(-1, 3), around(0), around(-1)]),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), torch.sigmoid, [run(-700, 700), run(-5, 5)]),
    "sqrt": (mpmath.sqrt, torch.sqrt, [run(0, 10)]),
    "rsqrt": (lambda x: 1 / mpmath.sqrt(x), torch.rsqrt, [run(0, 10)]),
    "tanh": (mpmath.tanh, torch.tanh, [run(-25, 25), run(-1, 1), around(0)]),
    "sinh": (mpmath.sinh, torch.sinh, [run(-700, 700), run(-2, 2), around(0)]),
    "cosh": (mpmath.cosh, torch.cosh, [run(-700, 700), run(-2, 2)]),
    "sin": (mpmath.sin, torch.sin, [run(-10, 10), run(-1e6, 1e6), around(0)]),
    "cos": (mpmath.cos, torch.cos, [run(-10, 10), run(-1e6, 1e6)]),
    "tan": (mpmath.tan, torch.tan, [run(-10, 10), run(-1e6, 1e6), around(0)]),
    "asin": (mpmath.asin, torch.asin, [run(-1, 1), around(1), around(0)]),
    "acos": (mpmath.acos, torch.acos, [run(-1, 1), around(1), around(-1)]),
    "atan": (mpmath.atan, torch.atan, [run(-10, 10), around(0)]),
    "asinh": (mpmath.asinh, torch.asinh, [run(-10, 10), around(0)]),
    "acosh": (mpmath.acosh, torch.acosh, [run(1, 10), around(1)]),
    "atanh": (mpmath.atanh, torch.atanh, [run(-1, 1), around(1), around(0)]),
    "erf": (mpmath.erf, torch.erf, [run(-7, 7), around(0)]),
    "erfc": (mpmath.erfc, torch.erfc, [run(-5, 26), around(0)]),
    "erfcx": (lambda x: mpmath.exp(x * x) * mpmath.erfc(x), torch.special.erfcx, [run(-26, 30)]),
    "erfinv": (mpmath.erfinv, torch.erfinv, [run(-1, 1), around(1), around(0)]),
    "ndtr": (lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2, torch.special.ndtr, [run(-37, 9)]),
    "lgamma": (
        lambda x: mpmath.log(abs(mpmath.gamma(x))),
        torch.lgamma,
        [run(0, 3), run(0, 170), around(1), around(2)],
    ),
    "digamma": (mpmath.digamma, torch.digamma, [run(0, 3), run(0, 170), run(-10, 0)]),
    "bessel_j0": (lambda x: mpmath.besselj(0, x), None, [run(0, 8), run(8, 60)]),
    "bessel_j1": (lambda x: mpmath.besselj(1, x), None, [run(0, 8), run(8, 60)]),
    "bessel_y0": (lambda x: mpmath.bessely(0, x), None, [run(0, 8, 60), run(8, 60, 60)]),
    "bessel_y1": (lambda x: mpmath.bessely(1, x), None, [run(0, 8, 60), run(8, 60, 60)]),
    "i0": (lambda x: mpmath.besseli(0, x), None, [run(0, 8), run(8, 700)]),
    "i0e": (lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)), torch.special.i0e, [run(0, 8), run(8, 700)]),
    "i1": (lambda x: mpmath.besseli(1, x), None, [run(0, 8), run(8, 700)]),
    "i1e": (lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)), torch.special.i1e, [run(0, 8), run(8, 700)]),
    "modified_bessel_k0": (lambda x: mpmath.besselk(0, x), None, [run(0, 5, 25), run(5, 600, 25)]),
    "modified_bessel_k1": (lambda x: mpmath.besselk(1, x), None, [run(0, 5, 25), run(5, 600, 25)]),
    "scaled_modified_bessel_k0": (
        lambda x: mpmath.besselk(0, x) * mpmath.exp(x),
        None,
        [run(0, 5, 25), run(5, 600, 25)],
    ),
    "scaled_modified_bessel_k1": (
        lambda x: mpmath.besselk(1, x) * mpmath.exp(x),
        None,
        [run(0, 5, 25), run(5, 600, 25)],
    ),
}
BINARY = {"pow": torch.pow, "atan2": torch.atan2, "hypot": torch.hypot}
EXACT = ["abs", "sign", "floor", "ceil", "trunc", "round", "frexp_mantissa", "frexp_exponent"]
EXACT_BINARY = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "fmod": np.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
}


def relative_errors(got: np.ndarray, exact, *arrays: np.ndarray) -> np.ndarray:
    """Against `exact` at 200 bits; 0 where there is no finite real value, or it does not fit a double."""
    errors = np.zeros(len(got))
    with mpmath.workprec(200):
        for i, values in enumerate(zip(*arrays, strict=True)):
            if not np.isfinite(got[i]) or not all(map(np.isfinite, values)):
                continue
            try:
                want = exact(*map(mpmath.mpf, map(float, values)))
            except (ValueError, ZeroDivisionError, OverflowError):
                continue
            if mpmath.im(want) == 0 and 1e-307 < abs(want) < 1e308:
                errors[i] = float(abs(float(got[i]) - mpmath.re(want)) / abs(want))
    return errors


def assert_same(got: np.ndarray, want: np.ndarray, *arrays: np.ndarray, where: np.ndarray | None = None) -> None:
    """Bitwise the same, all NaN being one."""
    wrong = ~((got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want))
    wrong = np.flatnonzero(wrong if where is None else wrong & where)
    assert not wrong.size, [(*(a[i] for a in arrays), got[i], want[i]) for i in wrong[:5]]


@pytest.mark.parametrize("operator", sorted(UNARY))
def test_unary(evaluate, rng, operator):
    exact, peer, runs = UNARY[operator]
    function = FUNCTIONS[operator]
    x = np.concatenate([part(rng) for part in runs])
    if peer is not None:
        x = np.concatenate([x, any_bits(rng, N // 3, np.float64)])
    got = evaluate(f"{function.spelling(True)}(a)", x, out=np.float64)
    error = relative_errors(got, exact, x)
    if function.absolute:
        absolute = error * np.abs(got)
        error[absolute < ABSOLUTE] = 0
    worst = int(error.argmax())
    assert error[worst] < RELATIVE, f"{error[worst]:.2e} at {x[worst]!r}: {got[worst]!r}"
    if peer is not None:
        edges = special(np.float64)
        got = evaluate(f"{function.spelling(True)}(a)", edges, out=np.float64)
        want = peer(torch.from_numpy(edges)).numpy()
        # An overflow that torch sees a little early is left out.
        unlike = ~np.isfinite(want) & ~((np.abs(edges) > 709) & np.isinf(want)) | (edges == 0)
        assert_same(got, want, edges, where=unlike)


@pytest.mark.parametrize("operator", ["log_ndtr", "ndtri"])
def test_against_torch(evaluate, rng, operator):
    x = uniform(rng, -37, 5, N, np.float64) if operator == "log_ndtr" else uniform(rng, 0, 1, N, np.float64)
    x = np.concatenate([x, 10.0 ** rng.uniform(-320, 0, N)])
    got = evaluate(f"{FUNCTIONS[operator].spelling(True)}(a)", x, out=np.float64)
    want = getattr(torch.special, operator)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-13)


@pytest.mark.parametrize("operator", sorted(BINARY))
def test_binary(evaluate, rng, operator):
    first, second = pairs(special(np.float64))
    runs = [(run(0, 10), run(-300, 300)), (run(0.5, 2), run(-1000, 1000)), (run(-3, 3), run(-3, 3))]
    a = np.concatenate([first, *(one(rng) for one, _ in runs)])
    b = np.concatenate([second, *(two(rng) for _, two in runs)])
    got = evaluate(f"{FUNCTIONS[operator].spelling(True)}(a, b)", a, b, out=np.float64)
    want = BINARY[operator](torch.from_numpy(a), torch.from_numpy(b)).numpy()
    normal = np.isfinite(want) & (np.abs(want) > 3e-308)
    np.testing.assert_allclose(got[normal], want[normal], rtol=RELATIVE)
    assert_same(got, want, a, b, where=~np.isfinite(want) | (want == 0))


@pytest.mark.parametrize("operator", EXACT)
def test_exact(evaluate, rng, operator):
    x = np.concatenate([special(np.float64), any_bits(rng, 3000, np.float64), uniform(rng, -9, 9, 1000, np.float64)])
    x = np.concatenate([x, np.arange(-10, 10) * 0.5])
    t = torch.from_numpy(x)
    want = {
        "frexp_mantissa": lambda: torch.frexp(t).mantissa,
        "frexp_exponent": lambda: torch.where(t.isfinite(), torch.frexp(t).exponent, 0).double(),
    }.get(operator, lambda: getattr(torch, operator)(t))()
    got = evaluate(f"double({FUNCTIONS[operator].spelling(True)}(a))", x, out=np.float64)
    assert_same(got, want.numpy(), x)


@pytest.mark.parametrize("operator", sorted(EXACT_BINARY))
def test_exact_binary(evaluate, rng, operator):
    first, second = pairs(special(np.float64))
    a = np.concatenate([first, any_bits(rng, 2000, np.float64), uniform(rng, -9, 9, 2000, np.float64)])
    b = np.concatenate([second, any_bits(rng, 2000, np.float64), uniform(rng, -9, 9, 2000, np.float64)])
    got = evaluate(f"{FUNCTIONS[operator].spelling(True)}(a, b)", a, b, out=np.float64)
    peer = EXACT_BINARY[operator]
    with np.errstate(all="ignore"):
        want = peer(a, b) if isinstance(peer, np.ufunc) else peer(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    # torch's vectorised remainder gives up (NaN) on quotients that exceed a double's digits.
    where = np.isfinite(want) | ~np.isfinite(a) | ~np.isfinite(b) | (b == 0)
    if operator in ("maximum", "minimum"):
        where &= ~((a == 0) & (b == 0))  # either zero will do
    assert_same(got, want, a, b, where=where)


def test_ldexp(evaluate, rng):
    x = np.concatenate([special(np.float64), any_bits(rng, 3000, np.float64)])
    n = rng.integers(-2300, 2300, len(x)).astype(np.int32)
    with np.errstate(all="ignore"):
        assert_same(evaluate("vk_ldexp_f64(a, b)", x, n, out=np.float64), np.ldexp(x, n), x, n)


@pytest.mark.parametrize("test", ["isnan", "isinf", "isfinite", "signbit"])
def test_bit_tests(evaluate, rng, test):
    x = np.concatenate([special(np.float64), any_bits(rng, 3000, np.float64)])
    got = evaluate(f"vk_{test}_f64(a) ? 1 : 0", x, out=np.int32)
    np.testing.assert_array_equal(got.astype(bool), getattr(np, test)(x))
