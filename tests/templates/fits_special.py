"""The fits of bessel.glsl and erfinv, slow to make. `python tests/templates/fits_special.py [NAME ...]` prints them."""

from __future__ import annotations

import sys

import mpmath as mp
from fits import Fit, main

ONE = mp.mpf(1)


def asymptotic(order: int, x, sign):
    """The series sum a_k(order) (sign / x)^k of Abramowitz and Stegun 9.2.5-10 and 9.7.1-2, for large x."""
    term = total = mp.mpf(1)
    for k in range(1, 60):
        term = term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k) * sign / x
        total += term
        if abs(term) < mp.mpf("1e-45"):
            break
    return total


def relative(function):
    return lambda x: 1 / abs(function(x))


def erfinv_ratio(w):
    """erfinv(x) / x where w = -log(1 - x^2)."""
    if w < mp.mpf("1e-20"):
        return mp.sqrt(mp.pi) / 2
    if w < 5:
        x = mp.sqrt(-mp.expm1(-w))
        return mp.erfinv(x) / x
    q = mp.exp(-w) / (1 + mp.sqrt(1 - mp.exp(-w)))  # 1 - x, whose inverse is found by Newton on log(erfc)
    y = mp.sqrt(-mp.log(q * mp.sqrt(mp.pi) * mp.sqrt(-mp.log(q))))
    for _ in range(8):
        slope = -2 / mp.sqrt(mp.pi) * mp.exp(-y * y) / mp.erfc(y)
        y -= (mp.log(mp.erfc(y)) - mp.log(q)) / slope
    return y / (1 - q)


def bessel(order: int) -> dict[str, Fit]:
    first, second = (mp.besseljzero(order, k) for k in (1, 2))
    nearly = mp.mpf("1e-18")

    def j_near(u):  # s = x^2 = 8 (u + 1)
        s = max(8 * (u + 1), mp.mpf("1e-30"))
        gap = s - first**2
        if abs(gap) < nearly:
            gap, s = nearly, first**2 + nearly
        x = mp.sqrt(s)
        return mp.besselj(order, x) / x**order / gap

    def j_middle(u):  # x = 6 + 2 u
        gap = 6 + 2 * u - second
        gap = nearly if abs(gap) < nearly else gap
        return mp.besselj(order, second + gap) / gap

    def y_near(u):
        x = mp.sqrt(max(8 * (u + 1), mp.mpf("1e-16")))
        if order == 0:
            return mp.bessely(0, x) - 2 / mp.pi * mp.log(x) * mp.besselj(0, x)
        return (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x

    def modulus(q):  # q = (8 / x)^2
        if q <= 0:
            return ONE
        x = 8 / mp.sqrt(q)
        if x > 100:
            return abs(asymptotic(order, x, mp.mpc(0, 1)))
        return mp.sqrt((mp.besselj(order, x) ** 2 + mp.bessely(order, x) ** 2) * mp.pi * x / 2)

    def phase(q):
        x = 8 / mp.sqrt(max(q, mp.mpf("1e-24")))
        if x > 100:
            return mp.arg(asymptotic(order, x, mp.mpc(0, 1))) * x / 8
        angle = mp.atan2(mp.bessely(order, x), mp.besselj(order, x)) - (x - (2 * order + 1) * mp.pi / 4)
        return (angle - 2 * mp.pi * mp.nint(angle / (2 * mp.pi))) * x / 8

    def i_near(s):
        x = mp.sqrt(s)
        return mp.besseli(order, x) / x**order if s > mp.mpf("1e-30") else ONE / 2**order

    def i_far(v):  # v = 1 / x
        if v < mp.mpf("0.01"):
            return (asymptotic(order, 1 / v, -1) if v > 0 else ONE) / mp.sqrt(2 * mp.pi)
        return mp.besseli(order, 1 / v) * mp.exp(-1 / v) / mp.sqrt(v)

    def k_near(s):
        x = mp.sqrt(max(s, mp.mpf("1e-16")))
        if order == 0:
            return mp.besselk(0, x) + mp.log(x) * mp.besseli(0, x)
        return (mp.besselk(1, x) - 1 / x - mp.log(x) * mp.besseli(1, x)) / x

    def k_far(u):  # x = 4 / (u + 1)
        v = (u + 1) / 4
        if v < mp.mpf("0.01"):
            return (asymptotic(order, 1 / v, 1) if v > 0 else ONE) * mp.sqrt(mp.pi / 2)
        return mp.besselk(order, 1 / v) * mp.exp(1 / v) / mp.sqrt(v)

    def one(_):
        return ONE

    n, last = order, ONE / mp.mpf(7.75)
    return {
        f"j{n}_near": Fit(f"vk_bessel_j{n}_near", j_near, -1, 1, 7, relative(j_near), 15),
        f"j{n}_middle": Fit(f"vk_bessel_j{n}_near", j_middle, -1, 1, 9, relative(j_middle), 20),
        f"y{n}_near": Fit(f"vk_bessel_y{n}", y_near, -1, 1, 8, one, 16),
        f"y{n}_middle": Fit(f"vk_bessel_y{n}", lambda u: mp.bessely(order, 6 + 2 * u), -1, 1, 10, one, 21),
        f"modulus{n}": Fit(f"vk_bessel_{n}_far", modulus, 0, 1, 4, relative(modulus), 15),
        f"phase{n}": Fit(f"vk_bessel_{n}_far", phase, 0, 1, 4, relative(phase), 15),
        f"i{n}_near": Fit(f"vk_i{n}_near", i_near, 0, 7.75**2, 12, relative(i_near), 20),
        f"i{n}_far": Fit(f"vk_i{n}e_far", i_far, 0, last, 6, relative(i_far), 18),
        f"k{n}_near": Fit(f"vk_k{n}_near", k_near, 0, 4, 6, one, 11),
        f"k{n}_far": Fit(f"vk_k{n}e_far", k_far, -1, 1, 9, relative(k_far), 24),
    }


def erfinv() -> dict[str, Fit]:
    def shifted(centre: int, root: bool):
        return lambda u: erfinv_ratio((u + centre) ** 2 if root else u + mp.mpf(2.5))

    def fit(centre: int, low, high, degree: int, root: bool) -> Fit:
        function = shifted(centre, root)
        return Fit("vk_erfinv_ratio", function, low, high, degree, relative(function))

    return {
        "erfinv_centre": fit(0, -2.5, 2.5, 9, False),
        "erfinv_tail": fit(3, mp.sqrt(5) - 3.001, mp.sqrt(mp.mpf(17.7)) - 3, 10, True),
        "erfinv_far": fit(6, mp.mpf("4.19") - 6, mp.mpf("10.3") - 6, 9, True),
    }


def airy() -> dict[str, Fit]:
    """Ai by DLMF 9.7: z = 2/3 |x|^(3/2), v = 1/z."""

    def u(k):  # DLMF 9.7.2
        return mp.gamma(3 * k + 0.5) / (54**k * mp.factorial(k) * mp.gamma(k + 0.5))

    def size(v):
        return (3 / (2 * v)) ** (mp.mpf(2) / 3)

    def decay(v):  # Ai(x) 2 sqrt(pi) x^(1/4) e^z
        if v < mp.mpf("0.02"):
            return mp.fsum((-v) ** k * u(k) for k in range(30))
        x = size(v)
        return mp.airyai(x) * 2 * mp.sqrt(mp.pi) * x ** (ONE / 4) * mp.exp(1 / v)

    def turned(q):  # (p, q): Ai(-x) sqrt(pi) x^(1/4) = p cos(z - pi/4) + v q sin(z - pi/4), of q = v^2
        if q < mp.mpf("0.0004"):
            return tuple(mp.fsum((-q) ** k * u(2 * k + odd) for k in range(15)) for odd in (0, 1))
        v = mp.sqrt(q)
        x = size(v)
        scale, angle = mp.sqrt(mp.pi) * x ** (ONE / 4), 1 / v - mp.pi / 4
        a, b = scale * mp.airyai(-x), scale * mp.airybi(-x)
        return a * mp.cos(angle) - b * mp.sin(angle), (a * mp.sin(angle) + b * mp.cos(angle)) / v

    def one(_):
        return ONE

    return {
        "airy_far": Fit("vk_airy_decay", lambda t: decay((t + 1) / 5), -1, 1, 6, one, 20),
        "airy_near": Fit("vk_airy_decay", lambda t: decay(mp.mpf("0.4") + (t + 1) * mp.mpf("0.55")), -1, 1, 7, one, 18),
        "airy_middle": Fit("vk_airy_middle", lambda u: mp.airyai(2 * u - 1), -1, 1, 13, one, 26),
        "airy_cos": Fit("vk_airy_wave", lambda t: turned((t + 1) / 24)[0], -1, 1, 5, one, 22),
        "airy_sin": Fit("vk_airy_wave", lambda t: turned((t + 1) / 24)[1], -1, 1, 5, one, 22),
    }


FITS: dict[str, Fit] = {**erfinv(), **bessel(0), **bessel(1), **airy()}

if __name__ == "__main__":
    main(sys.argv[1:] or list(FITS), FITS)
