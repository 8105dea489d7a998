"""Index expressions as GLSL: rounding of divisions, the kernel's one index type."""

from __future__ import annotations

import re

import pytest
import sympy
import torch
from torch.utils._sympy.functions import (
    CeilToInt,
    CleanDiv,
    FloatPow,
    FloorDiv,
    FloorToInt,
    Identity,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
    RoundToInt,
    ToFloat,
    TruncToInt,
    Where,
)

from vkinductor.codegen.index_values import integral, is_real
from vkinductor.codegen.printer import GlslPrinter

X = sympy.Symbol("x", integer=True, nonnegative=True)
N = sympy.Symbol("n", integer=True)
S = sympy.Symbol("s", integer=True, positive=True)
F = sympy.Symbol("f", real=True)


def glsl(expr: sympy.Expr, index_type: str = "int") -> str:
    return GlslPrinter(index_type).doprint(expr)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (X + 3, "3 + x"),
        (3 * X + S * 2, "2*s + 3*x"),
        (FloorDiv(X, 3), "((x) / (3))"),
        (FloorDiv(N, 3), "vk_floordiv(int(n), int(3))"),
        (CleanDiv(X, 4), "((x) / (4))"),
        (ModularIndexing(X, 1, 5), "((x) % (5))"),
        (ModularIndexing(X, 2, 5), "(((x) / (2)) % (5))"),
        (ModularIndexing(N, 1, 5), "vk_remainder(int(n), int(5))"),
        (ModularIndexing(N, 2, 5), "vk_remainder(vk_floordiv(int(n), int(2)), int(5))"),
        (PythonMod(X, 5), "((x) % (5))"),
        (PythonMod(N, 5), "vk_remainder(int(n), int(5))"),
        (Mod(X, S), "((x) % (s))"),
        (X**2, "((x) * (x))"),
        (PowByNatural(X, S), "vk_ipow(int(x), int(s))"),
        (sympy.Integer(1 << 31), "2147483648l"),
        (sympy.true, "true"),
        (sympy.Float(0.0), "0"),
    ],
)
def test_integers(expr: sympy.Expr, text: str) -> None:
    assert glsl(expr).replace(" ", "") == text.replace(" ", "")


def test_the_lowest_integers_are_no_overflowing_literals() -> None:
    # GLSL reads -2147483648 as minus 2147483648, which no int holds.
    assert glsl(sympy.Integer(-(1 << 31))) == "(-2147483647 - 1)"
    assert glsl(sympy.Integer(-(1 << 63)), "int64_t") == "(-9223372036854775807l - 1l)"


def test_reals_in_double_precision() -> None:
    printer = GlslPrinter("int", "double")
    assert printer.doprint(IntTrueDiv(X, S)) == "(double(x) / double(s))"
    assert printer.doprint(FloatPow(ToFloat(S), sympy.Float(0.25))) == "vk_pow_f64(double(double(s)), double(0.25lf))"
    assert glsl(FloatPow(ToFloat(S), sympy.Float(0.25))) == "vk_pow(float(float(s)), float(0.25))"


def test_wide_index_type() -> None:
    assert glsl(X + 3, "int64_t") == "3l + x"
    assert glsl(FloorDiv(N, 3), "int64_t") == "vk_floordiv(int64_t(n), int64_t(3l))"
    assert re.sub(r"\s", "", glsl(Max(X, 5), "int64_t")) in (
        "max(int64_t(5l),int64_t(x))",
        "max(int64_t(x),int64_t(5l))",
    )


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Min(X, S, 7), {"min", "int(x)", "int(s)", "int(7)"}),
        (Where(X < 5, X, S), {"x < 5", "?", ":"}),
        (sympy.Piecewise((X, X < 5), (S, True)), {"x < 5", "?"}),
        (sympy.And(X < 5, S > 2), {"&&"}),
        (sympy.Or(X < 5, S > 2), {"||"}),
        (sympy.Not(sympy.Symbol("b", bool=True)), {"!"}),
        (sympy.Abs(N), {"abs(n)"}),
        (Identity(X), {"x"}),
        (IntTrueDiv(X, S), {"float(x)", "float(s)"}),
        (ToFloat(X), {"float(x)"}),
        (FloorToInt(F), {"int(floor(float(f)))"}),
        (CeilToInt(F), {"int(ceil(float(f)))"}),
        (TruncToInt(F), {"int(trunc(float(f)))"}),
        (RoundToInt(F), {"int(roundEven(float(f)))"}),
        (sympy.Rational(1, 3), {"float(1) / float(3)"}),
        (sympy.oo, {"0x7f800000u"}),
        (-sympy.oo, {"0xff800000u"}),
    ],
)
def test_other_nodes(expr: sympy.Expr, text: set[str]) -> None:
    printed = glsl(expr)
    for part in text:
        assert part in printed


def test_factors_of_a_product_with_a_real_one() -> None:
    assert glsl(0.5 * N, "int64_t") == "(float(0.5) * float(n))"


def test_whole_floats_are_integers_again() -> None:
    assert glsl(integral(1.0 * N + 2.0)) == glsl(N + 2)
    assert is_real(1.0 * N, torch.float32)
    assert not is_real(N, torch.float32)
    assert not is_real(1.0 * N, torch.int64)
