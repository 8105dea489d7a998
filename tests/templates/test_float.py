"""Every function of one or two floats against float64 on the CPU, within the bound that the catalog
promises."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from samples import any_bits, may_be_flushed, near, pairs, special, ulps, uniform

from vkinductor.templates.catalog import FUNCTIONS


def of_torch(function):
    return lambda *arrays: function(*(torch.from_numpy(a) for a in arrays)).numpy()


def of_mpmath(function):
    """Each element at 200 bits: for what float64 libraries get wrong."""

    def each(*values: float) -> float:
        if not all(map(math.isfinite, values)):
            return math.nan
        with mpmath.workprec(200):
            result = function(*map(mpmath.mpf, values))
            return float(result) if mpmath.im(result) == 0 else math.nan

    return np.vectorize(each, otypes=[np.float64])


# operator -> reference in float64, dense runs of arguments (centre or range, see `arguments`)
UNARY = {
    "exp": (np.exp, [(-110, 95), (-1, 1)]),
    "exp_near": (np.exp, [(-110, 95), (-1, 1)]),
    "exp2": (np.exp2, [(-155, 130), (-1, 1)]),
    "expm1": (np.expm1, [(-20, 95), (-1, 1), 0.0]),
    "log": (np.log, [(0, 3), 1.0]),
    "log2": (np.log2, [(0, 3), 1.0]),
    "log10": (np.log10, [(0, 3), 1.0]),
    "log1p": (np.log1p, [(-1, 3), 0.0, -1.0]),
    "sigmoid": (of_torch(torch.sigmoid), [(-110, 110), (-5, 5)]),
    "sqrt": (np.sqrt, [(0, 10)]),
    "rsqrt": (of_torch(torch.rsqrt), [(0, 10)]),
    "tanh": (np.tanh, [(-10, 10), (-1, 1), 0.0]),
    "sinh": (np.sinh, [(-92, 92), (-2, 2), 0.0]),
    "cosh": (np.cosh, [(-92, 92), (-2, 2)]),
    "asin": (np.arcsin, [(-1.1, 1.1), 1.0, -1.0, 0.0]),
    "acos": (np.arccos, [(-1.1, 1.1), 1.0, -1.0, 0.0]),
    "atan": (np.arctan, [(-10, 10), 0.0]),
    "asinh": (np.arcsinh, [(-10, 10), 0.0]),
    "acosh": (np.arccosh, [(0, 10), 1.0]),
    "atanh": (np.arctanh, [(-1.1, 1.1), 1.0, -1.0, 0.0]),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), [(-5, 5), 0.0]),
    "erfc": (np.vectorize(math.erfc, otypes=[np.float64]), [(-5, 11), 0.0]),
    "erfcx": (of_torch(torch.special.erfcx), [(-10, 20), 0.0]),
    "erfinv": (of_torch(torch.erfinv), [(-1.1, 1.1), 1.0, -1.0, 0.0]),
    "ndtr": (np.vectorize(lambda x: math.erfc(-x / math.sqrt(2)) / 2, otypes=[np.float64]), [(-14, 10)]),
    "log_ndtr": (of_torch(torch.special.log_ndtr), [(-30, 10)]),
    "ndtri": (of_torch(torch.special.ndtri), [(-0.1, 1.1), 1.0]),
    "lgamma": (of_torch(torch.lgamma), [(0, 3), (0, 200), (-10, 0)]),
    "digamma": (of_torch(torch.digamma), [(0, 3), (0, 200), (-10, 0)]),
    "i0e": (of_torch(torch.special.i0e), [(-10, 10), (0, 100)]),
    "i1e": (of_torch(torch.special.i1e), [(-10, 10), (0, 100)]),
    "i0": (of_torch(torch.special.i0), [(-10, 10), (0, 91)]),
    "i1": (of_torch(torch.special.i1), [(-10, 10), (0, 91)]),
    "modified_bessel_k0": (of_torch(torch.special.modified_bessel_k0), [(0, 5), (0, 90)]),
    "modified_bessel_k1": (of_torch(torch.special.modified_bessel_k1), [(0, 5), (0, 90)]),
    "scaled_modified_bessel_k0": (of_torch(torch.special.scaled_modified_bessel_k0), [(0, 5), (0, 90)]),
    "scaled_modified_bessel_k1": (of_torch(torch.special.scaled_modified_bessel_k1), [(0, 5), (0, 90)]),
}
# torch's own J and Y are off by 4e-7 just above 5, and lose large arguments.
BESSEL = {
    "bessel_j0": lambda x: mpmath.besselj(0, x),
    "bessel_j1": lambda x: mpmath.besselj(1, x),
    "bessel_y0": lambda x: mpmath.bessely(0, x),
    "bessel_y1": lambda x: mpmath.bessely(1, x),
}
TRIGONOMETRIC = {"sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan}
BINARY = {"pow": np.power, "atan2": np.arctan2, "hypot": np.hypot, "truediv": np.divide, "div_rn": np.divide}

# Where torch's CPU kernels say NaN and the limit is a number.
BETTER_THAN_TORCH = {"i0": {np.inf, -np.inf}, "i1": {np.inf, -np.inf}}


def arguments(rng: np.random.Generator, runs: list, n: int = 20000) -> np.ndarray:
    parts = [special(), any_bits(rng, n)]
    for run in runs:
        parts.append(uniform(rng, *run, n) if isinstance(run, tuple) else near(rng, run, n))
    return np.concatenate(parts)


def check(operator: str, got: np.ndarray, want: np.ndarray, *arrays: np.ndarray) -> None:
    """The bound where both are finite; the same infinity, NaN and sign of zero elsewhere."""
    function = FUNCTIONS[operator]
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        error = ulps(got, want)
        error[np.abs(got - want) <= function.absolute] = 0
    anything_goes = may_be_flushed(want, *arrays)
    error[anything_goes] = 0
    worst = int(error.argmax())
    shown = [float(a[worst]) for a in arrays]
    assert error[worst] <= function.ulp, f"{error[worst]:.2f} ulp at {shown}: {got[worst]}, not {want[worst]}"
    special_ones = ~(np.isfinite(got) & np.isfinite(rounded))
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    for better in BETTER_THAN_TORCH.get(operator, ()):
        same |= arrays[0] == better
    # An ulp around the largest number decides between it and infinity.
    same |= np.isfinite(want) & (np.abs(want) > 3.4028e38)
    wrong = np.flatnonzero(special_ones & ~same & ~anything_goes)
    assert not wrong.size, [(*(float(a[i]) for a in arrays), float(got[i]), float(rounded[i])) for i in wrong[:5]]


def test_every_function_with_a_bound_is_measured():
    from test_library_special import CASES, POLYNOMIALS

    measured = {*CASES, *POLYNOMIALS, "gammainc", "gammaincc", "polygamma"}
    measured |= {*UNARY, *BESSEL, *TRIGONOMETRIC, *BINARY, "modified_bessel_i0", "modified_bessel_i1", "remainder"}
    assert measured == {operator for operator, function in FUNCTIONS.items() if function.ulp}


@pytest.mark.parametrize("operator", sorted(UNARY))
def test_unary(evaluate, rng, operator):
    reference, runs = UNARY[operator]
    x = arguments(rng, runs)
    got = evaluate(f"{FUNCTIONS[operator].name}(a)", x)
    with np.errstate(all="ignore"):
        check(operator, got, reference(x.astype(np.float64)), x)


@pytest.mark.parametrize("operator", sorted(TRIGONOMETRIC))
def test_trigonometric(evaluate, rng, operator):
    """Also where the argument is a huge number, or next to a multiple of pi/2."""
    quarters = (rng.integers(-(2**22), 2**22, 1000) * (math.pi / 2)).astype(np.float32)
    runs = [uniform(rng, -200, 200, 3000), uniform(rng, -1e5, 1e5, 1000), near(rng, 0.0, 1000)]
    x = np.concatenate([special(), any_bits(rng, 1000), quarters, *runs])
    got = evaluate(f"{FUNCTIONS[operator].name}(a)", x)
    check(operator, got, of_mpmath(TRIGONOMETRIC[operator])(x.astype(np.float64)), x)
    zero = np.array([0.0, -0.0], np.float32)
    signs = np.signbit(evaluate(f"{FUNCTIONS[operator].name}(a)", zero))
    assert signs.tolist() == [False, operator != "cos"]


@pytest.mark.parametrize("operator", sorted(BESSEL))
def test_bessel(evaluate, rng, operator):
    x = np.concatenate([uniform(rng, 0, 8, 200), uniform(rng, 8, 60, 200), uniform(rng, 60, 2000, 40)])
    got = evaluate(f"{FUNCTIONS[operator].name}(a)", x)
    check(operator, got, of_mpmath(BESSEL[operator])(x.astype(np.float64)), x)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0], np.float32)
    want = getattr(torch.special, operator)(torch.from_numpy(edges).double()).numpy()
    check(operator, evaluate(f"{FUNCTIONS[operator].name}(a)", edges), want, edges)


@pytest.mark.parametrize("operator", sorted(BINARY))
def test_binary(evaluate, rng, operator):
    n = 20000
    specials = pairs(np.concatenate([special(), np.float32([-3.5, 7, -7, 1e-3, 1e30])]))
    # Bases near 1 with exponents that just do not overflow are hard for pow.
    runs = [(uniform(rng, 0, 10, n), uniform(rng, -130, 130, n)), (uniform(rng, 0.5, 2, n), uniform(rng, -128, 128, n))]
    runs += [(near(rng, 1.0, n, high=-2), uniform(rng, -1e4, 1e4, n)), (uniform(rng, -3, 3, n), uniform(rng, -3, 3, n))]
    runs += [(any_bits(rng, n), any_bits(rng, n)), specials]
    a, b = (np.concatenate(column) for column in zip(*runs, strict=True))
    got = evaluate(f"{FUNCTIONS[operator].name}(a, b)", a, b)
    with np.errstate(all="ignore"):
        want = BINARY[operator](a.astype(np.float64), b.astype(np.float64))
    check(operator, got, want, a, b)
    zeros = (want == 0) & (got == 0)
    assert (np.signbit(got) == np.signbit(want))[zeros].all()


@pytest.mark.parametrize(
    "operator", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "expm1", "log1p"]
)
def test_odd_functions_keep_small_arguments(evaluate, operator):
    """f(x) = x to the last bit for tiny x, signed zeros and subnormals included."""
    x = np.float32([0.0, -0.0, 1e-45, -1e-45, 1e-39, 1.2e-38, -1e-20, 1e-10])
    x = x[~may_be_flushed(x)]
    want = np.float32(x * (2 / math.sqrt(math.pi))) if operator == "erf" else x
    got = evaluate(f"{FUNCTIONS[operator].name}(a)", x)
    np.testing.assert_allclose(got, want, rtol=2e-7, atol=2e-45)
    assert (np.signbit(got) == np.signbit(want)).all()
