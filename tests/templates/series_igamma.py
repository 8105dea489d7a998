"""The coefficients of igamma.glsl: c[k](eta) of DLMF 8.12.10 as power series in eta.

`python tests/templates/series_igamma.py` prints them, highest power first, as they stand in the library.
"""

from __future__ import annotations

import mpmath as mp

ORDER = 44  # of the series in eta that are computed with: each step from c[k-1] to c[k] costs two


def mu_over_eta() -> list[mp.mpf]:
    """lambda - 1 = eta (1 + m1 eta + ...), with eta^2 / 2 = lambda - 1 - log(lambda): mu' mu = eta (1 + mu)."""
    mu = [mp.mpf(0), mp.mpf(1)]
    for n in range(2, ORDER + 2):
        # The coefficient of eta^n in mu mu' is sum (i mu[i] mu[n+1-i]), that of eta (1 + mu) is mu[n-1].
        known = sum((i * mu[i] * mu[n + 1 - i] for i in range(2, n)), mp.mpf(0))
        mu.append((mu[n - 1] - known) / (n + 1))
    return mu[1:]


def reciprocal(series: list[mp.mpf]) -> list[mp.mpf]:
    out = [1 / series[0]]
    for n in range(1, len(series)):
        out.append(-sum(series[i] * out[n - i] for i in range(1, n + 1)) / series[0])
    return out


def stirling(terms: int) -> list[mp.mpf]:
    """g[k] of DLMF 5.11.3: gamma(z) ~ e^-z z^z sqrt(2 pi / z) sum g[k] / z^k."""
    log = [mp.mpf(0)] * (terms + 1)
    for k in range(1, terms // 2 + 1):
        if 2 * k - 1 <= terms:
            log[2 * k - 1] = mp.bernoulli(2 * k) / (2 * k * (2 * k - 1))
    g = [mp.mpf(1)]
    for n in range(1, terms + 1):
        g.append(sum(k * log[k] * g[n - k] for k in range(1, n + 1)) / n)
    return g


def coefficients(count: int) -> list[list[mp.mpf]]:
    """c[0] ... c[count - 1], each a list from the constant up."""
    with mp.workdps(60):
        inverse = reciprocal(mu_over_eta())  # 1 / mu = (1 / eta) * this
        g = stirling(count)
        c = [inverse[1:]]  # 1 / mu - 1 / eta
        for k in range(1, count):
            last, sign = c[-1], (-1) ** k * g[k]
            # (1/eta) d/dη of c[k-1] has the pole c1 / eta, which that of g[k] / mu takes away.
            slope = [(n + 1) * last[n + 1] for n in range(len(last) - 1)]
            assert abs(slope[0] + sign * inverse[0]) < mp.mpf("1e-40")
            c.append([slope[n + 1] + sign * inverse[n + 1] for n in range(len(slope) - 1)])
        return c


def kept(series: list[mp.mpf], limit: float, reach: float = 0.34) -> list[mp.mpf]:
    """`series` up to where terms at `reach` are below `limit`."""
    size = max(n for n, value in enumerate(series) if abs(value) * reach**n > limit)
    return series[: size + 1]


def table(double: bool) -> list[list[mp.mpf]]:
    """The polynomials of the float and of the double form."""
    count, start, limit = (7, 100, 1e-17) if double else (4, 20, 1e-8)
    return [kept(c, limit * start**k) for k, c in enumerate(coefficients(count))]


if __name__ == "__main__":
    for double in (False, True):
        for k, series in enumerate(table(double)):
            print(f"c{k}{' (double)' if double else ''}")
            for value in reversed(series):
                print(f"    {float(value):.17e}" if double else f"    {float(value):.9e}")
