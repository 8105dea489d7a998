"""The polynomials in the library are those that `fits.py` makes."""

from __future__ import annotations

import re

import mpmath
import numpy as np
import pytest
from fits import DIGITS, FITS, remez
from fits_special import FITS as SPECIAL

from vkinductor.templates import library

LITERAL = re.compile(r"(?<![\w.])([-+] ?)?(\d+\.\d+(?:e[+-]\d+)?)")


def constants(name: str) -> list[float]:
    """Every decimal constant in the text of one function, with the sign before it."""
    text = library([name])
    body = text[text.index(f" {name}(") :]
    return [
        float(number) * (-1 if sign.strip() == "-" else 1)
        for sign, number in LITERAL.findall(body.replace("= -", "= - "))
    ]


# The others of the special table take half a minute.
QUICK = {name: SPECIAL[name] for name in ("erfinv_centre", "j0_near", "i0_near", "i1_near", "i1_far")}
ALL = FITS | QUICK


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_library_holds_the_fit(name):
    fit = ALL[name]
    with mpmath.workdps(DIGITS):
        coefficients, _ = remez(fit)
    held = np.array(constants(fit.used_by))
    for coefficient in map(float, coefficients):
        # The exchange stops within two percent of the best error, so that last digits differ by way of its start.
        assert np.isclose(held, coefficient, rtol=2e-3, atol=1e-9).any(), coefficient
