"""GELU among the operators of a kernel: Inductor writes out x/2 * (erf(x / sqrt(2)) + 1), the library has it whole.

Found by the text of registers when the last product is written; what that was made of stays unused, and compilers drop
it.
"""

from __future__ import annotations

import math
import re

from torch._inductor.virtualized import V

from .compat import variable
from .glsl_cse import GlslVariable
from .operands import Operand, unwrap

_SUM_OR_PRODUCT = re.compile(r"\((\w+) ([+*]) (\w+)\)")
_ERF = re.compile(r"vk_erf\((\w+)\)")


def argument(a: Operand, b: Operand) -> GlslVariable | None:
    """x, where ``a`` * ``b`` in float32 is its GELU; else None."""
    for half, more in ((unwrap(a), unwrap(b)), (unwrap(b), unwrap(a))):
        erf = _ERF.fullmatch(_text(_beside(more, "+", 1.0)))
        if erf is not None:
            x = _beside(half, "*", 0.5)
            return x if x is not None and x is _beside(_variable(erf[1]), "*", math.sqrt(0.5)) else None
    return None


def _beside(x: object, symbol: str, constant: float) -> GlslVariable | None:
    """The register that ``x`` adds to, or multiplies by, ``constant``."""
    match = _SUM_OR_PRODUCT.fullmatch(_text(x))
    if match is None or match[2] != symbol:
        return None
    for one, other in ((match[1], match[3]), (match[3], match[1])):
        if _is(other, constant):
            return _variable(one)
    return None


def _is(name: str, constant: float) -> bool:
    try:
        return math.isclose(float(_text(_variable(name)) or name), constant, rel_tol=1e-6)
    except ValueError:
        return False


def _variable(name: str) -> GlslVariable | None:
    found = variable(V.kernel, name)
    return found if isinstance(found, GlslVariable) else None


def _text(x: object) -> str:
    return x.text if isinstance(x, GlslVariable) else ""
