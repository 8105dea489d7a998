"""Prints sympy index expressions as GLSL.

Index variables, sizes and strides are all of the kernel's one index type (``int`` or ``int64_t``), so
integers print bare. Inductor's FloorDiv rounds down while GLSL's ``/`` truncates: they agree on the
non-negative operands that iteration variables and sizes are, and only the others pay for ``vk_floordiv``.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE
from torch.utils._sympy.printers import ExprPrinter


def _nonnegative(expr: Any) -> bool:
    return bool(getattr(expr, "is_nonnegative", False))


class GlslPrinter(ExprPrinter):
    """sympy to GLSL for one index type.

    ``index_type`` is ``"int"`` or ``"int64_t"``; ``real`` is the type of what is no integer, ``"float"`` or
    ``"double"``.
    """

    def __init__(self, index_type: str, real: str = "float") -> None:
        super().__init__()
        self.index_type = index_type
        self.real = real

    def _real(self, expr: Any) -> str:
        return f"{self.real}({self.doprint(expr)})"

    def _real_call(self, function: str, *args: Any) -> str:
        name = f"{function}_f64" if self.real == "double" else function
        return f"{name}({', '.join(map(self._real, args))})"

    def _call(self, function: str, *args: Any) -> str:
        return f"{function}({', '.join(f'{self.index_type}({self.doprint(a)})' for a in args)})"

    def _print_Integer(self, expr: sympy.Expr) -> str:
        value = int(expr)
        if self.index_type == "int64_t":
            return f"{value}l" if value != -(1 << 63) else "(-9223372036854775807l - 1l)"
        if not -(1 << 31) <= value < 1 << 31:
            return f"{value}l"
        if value == -(1 << 31):
            return "(-2147483647 - 1)"
        return str(value)

    _print_One = _print_Zero = _print_NegativeOne = _print_Integer

    def _print_FloorDiv(self, expr: sympy.Expr) -> str:
        x, div = expr.args
        if not expr.is_integer:
            return f"floor({self._real(x)} / {self._real(div)})"
        if _nonnegative(x) and _nonnegative(div):
            return f"(({self.doprint(x)}) / ({self.doprint(div)}))"
        return self._call("vk_floordiv", x, div)

    def _print_CleanDiv(self, expr: sympy.Expr) -> str:
        x, div = expr.args
        return f"(({self.doprint(x)}) / ({self.doprint(div)}))"

    def _print_ModularIndexing(self, expr: sympy.Expr) -> str:
        x, div, mod = expr.args
        if _nonnegative(x):
            inner = f"({self.doprint(x)})" if div == 1 else f"(({self.doprint(x)}) / ({self.doprint(div)}))"
            return f"({inner} % ({self.doprint(mod)}))"
        inner = f"{self.index_type}({self.doprint(x)})" if div == 1 else self._call("vk_floordiv", x, div)
        return f"vk_remainder({inner}, {self.index_type}({self.doprint(mod)}))"

    def _print_PythonMod(self, expr: sympy.Expr) -> str:
        x, mod = expr.args
        if _nonnegative(x) and _nonnegative(mod):
            return f"(({self.doprint(x)}) % ({self.doprint(mod)}))"
        return self._call("vk_remainder", x, mod)

    def _print_Mod(self, expr: sympy.Expr) -> str:
        x, mod = expr.args
        return f"(({self.doprint(x)}) % ({self.doprint(mod)}))"

    def _fold(self, function: str, expr: sympy.Expr) -> str:
        kind = self.index_type if expr.is_integer else self.real
        args = [f"{kind}({self.doprint(a)})" for a in expr.args]
        result = args[0]
        for arg in args[1:]:
            result = f"{function}({result}, {arg})"
        return result

    def _print_Min(self, expr: sympy.Expr) -> str:
        return self._fold("min", expr)

    def _print_Max(self, expr: sympy.Expr) -> str:
        return self._fold("max", expr)

    def _print_Abs(self, expr: sympy.Expr) -> str:
        return self._fold("abs", expr) if len(expr.args) > 1 else f"abs({self.doprint(expr.args[0])})"

    def _print_Where(self, expr: sympy.Expr) -> str:
        c, p, q = (self.parenthesize(arg, PRECEDENCE["Atom"] - 0.5) for arg in expr.args)
        return f"({c} ? {p} : {q})"

    def _print_Piecewise(self, expr: sympy.Expr) -> str:
        result = "0"
        for value, condition in reversed(expr.args):
            if condition == True:  # noqa: E712  (sympy's true)
                result = f"({self.doprint(value)})"
            else:
                result = f"(({self.doprint(condition)}) ? ({self.doprint(value)}) : {result})"
        return result

    def _print_Not(self, expr: sympy.Expr) -> str:
        return f"!({self.doprint(expr.args[0])})"

    def _print_And(self, expr: sympy.Expr) -> str:
        return " && ".join(f"({self.doprint(a)})" for a in expr.args)

    def _print_Or(self, expr: sympy.Expr) -> str:
        return " || ".join(f"({self.doprint(a)})" for a in expr.args)

    def _print_BooleanTrue(self, expr: sympy.Expr) -> str:
        return "true"

    def _print_BooleanFalse(self, expr: sympy.Expr) -> str:
        return "false"

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return self._real(expr.args[0])

    def _print_Float(self, expr: sympy.Expr) -> str:
        # sympy takes 0.0 for an integer; printed as a float it would break integer index maths.
        if expr.is_integer:
            return str(int(expr))
        return repr(float(expr)) + ("lf" if self.real == "double" else "")

    def _print_Mul(self, expr: sympy.Expr) -> str:
        if not any(isinstance(arg, sympy.Float) for arg in expr.args):
            return super()._print_Mul(expr)
        # GLSL multiplies no 64-bit integer by a float.
        return f"({' * '.join(map(self._real, expr.args))})"

    def _print_Rational(self, expr: sympy.Expr) -> str:
        return str(expr.p) if expr.q == 1 else f"({self.real}({expr.p}) / {self.real}({expr.q}))"

    def _print_IntTrueDiv(self, expr: sympy.Expr) -> str:
        lhs, rhs = expr.args
        return f"({self._real(lhs)} / {self._real(rhs)})"

    _print_FloatTrueDiv = _print_IntTrueDiv

    def _rounded(self, function: str, expr: sympy.Expr) -> str:
        return f"{self.index_type}({function}({self._real(expr.args[0])}))"

    def _print_FloorToInt(self, expr: sympy.Expr) -> str:
        return self._rounded("floor", expr)

    _print_floor = _print_FloorToInt

    def _print_CeilToInt(self, expr: sympy.Expr) -> str:
        return self._rounded("ceil", expr)

    _print_ceiling = _print_CeilToInt

    def _print_TruncToInt(self, expr: sympy.Expr) -> str:
        return self._rounded("trunc", expr)

    def _print_RoundToInt(self, expr: sympy.Expr) -> str:
        return self._rounded("roundEven", expr)

    def _print_TruncToFloat(self, expr: sympy.Expr) -> str:
        return f"trunc({self._real(expr.args[0])})"

    def _print_PowByNatural(self, expr: sympy.Expr) -> str:
        return self._call("vk_ipow", *expr.args)

    def _print_Pow(self, expr: sympy.Expr) -> str:
        base, exponent = expr.args
        if exponent.is_Integer and int(exponent) >= 0:
            factors = [f"({self.doprint(base)})"] * int(exponent)
            return f"({' * '.join(factors)})" if factors else "1"
        if exponent == sympy.Rational(1, 2):
            return f"sqrt({self._real(base)})"
        return self._real_call("vk_pow", base, exponent)

    def _print_FloatPow(self, expr: sympy.Expr) -> str:
        base, exponent = expr.args
        return self._real_call("vk_pow", base, exponent)

    def _print_OpaqueUnaryFn_sqrt(self, expr: sympy.Expr) -> str:
        return f"sqrt({self._real(expr.args[0])})"

    def _print_OpaqueUnaryFn_log2(self, expr: sympy.Expr) -> str:
        return self._real_call("vk_log2", expr.args[0])

    def _print_Infinity(self, expr: sympy.Expr) -> str:
        return "uintBitsToFloat(0x7f800000u)"

    def _print_NegativeInfinity(self, expr: sympy.Expr) -> str:
        return "uintBitsToFloat(0xff800000u)"

    def _print_NaN(self, expr: sympy.Expr) -> str:
        return "uintBitsToFloat(0x7fc00000u)"
