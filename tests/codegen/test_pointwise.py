"""Elementwise kernels in every dtype: arithmetic and wrap-around, comparisons, bits, conversions, special values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from compiled import DTYPES, FLOATS, INTEGERS, SIGNED, UNSIGNED, check, compiled, name_of, same

UNSIGNED_WIDE = (torch.uint16, torch.uint32, torch.uint64)
# What eager on the CPU computes itself; the wide unsigned integers are compared with numpy.
EAGER_INTEGERS = tuple(d for d in INTEGERS if d not in UNSIGNED_WIDE)
NAN, INF = math.nan, math.inf


def integers(dtype: torch.dtype, count: int = 67) -> torch.Tensor:
    """Random values over the whole range of ``dtype``, its extremes first."""
    info = torch.iinfo(dtype)
    edge = [info.min, info.max, 0, 1, info.min + 1, info.max - 1, 2, 3]
    drawn = np.random.default_rng(1).integers(info.min, info.max, count, endpoint=True, dtype=name_of(dtype))
    drawn[: len(edge)] = edge
    return torch.from_numpy(drawn)


def floats(dtype: torch.dtype, count: int = 71) -> torch.Tensor:
    """Normal values with NaN, infinities, signed zeros, large and tiny ones among them."""
    special = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e4, -1e4, 1e-4, 0.5, 1.5, 2.5, -0.5, -2.5]
    x = torch.randn(count, dtype=torch.float64) * 3
    x[: len(special)] = torch.tensor(special, dtype=torch.float64)
    return x.to(dtype)


def divisors(x: torch.Tensor) -> torch.Tensor:
    """Non-zero values of both signs, never -1 (lowest / -1 overflows, which the C++ reference traps on)."""
    y = x.roll(5).clone()
    y[(y == 0) | (y == -1)] = 7
    y[10:30] = y[10:30] % 11 + 2
    if x.dtype in SIGNED:
        y[20:30] *= -1
    return y


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_float_arithmetic(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "add": x + y,
            "sub": x - y * 2,
            "mul": x * y,
            "div": x / y,
            "neg": -x,
            "abs": x.abs(),
            "reciprocal": y.reciprocal(),
            "square": x.square(),
            "relu": x.relu(),
            "sign": x.sign(),
            "signbit": x.signbit(),
            "scalar": 3 - x * 0.5,
            "addcmul": torch.addcmul(x, x, y, value=0.5),
            "lerp": torch.lerp(x, y, 0.25),
        }

    x = floats(dtype)
    check(f, x, x.roll(7))


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_float_rounding_and_selection(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "floor": x.floor(),
            "ceil": x.ceil(),
            "trunc": x.trunc(),
            "round": x.round(),
            "maximum": torch.maximum(x, y),
            "minimum": torch.minimum(x, y),
            "fmax": torch.fmax(x, y),
            "fmin": torch.fmin(x, y),
            "clamp": x.clamp(-1.5, 2.5),
            "clamp_min": x.clamp(min=0),
            "where": torch.where(x > y, x, y),
            "where_scalar": torch.where(x > 0, x, -1.0),
            "isnan": x.isnan(),
            "isinf": x.isinf(),
            "isfinite": x.isfinite(),
            "nan_to_num": x.nan_to_num(),
            "copysign": x.copysign(y),
            "masked_fill": x.masked_fill(y > 0, -INF),
        }

    x = floats(dtype)
    check(f, x, x.roll(7))


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_float_division_with_rounding(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "floor_divide": torch.floor_divide(x, y),
            "trunc": torch.div(x, y, rounding_mode="trunc"),
            "fmod": torch.fmod(x, y),
            "remainder": torch.remainder(x, y),
        }

    # Numbers whose quotients are far from integers: the quotient's last bit decides otherwise.
    x = torch.arange(-20, 20, dtype=torch.float64) + 0.375
    y = torch.tensor([3.0, -3.0, 7.0, -7.0], dtype=torch.float64).repeat(10)
    check(f, x.to(dtype), y.to(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64, torch.uint8, torch.bool], ids=name_of)
def test_comparisons(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "eq": x == y,
            "ne": x != y,
            "lt": x < y,
            "le": x <= y,
            "gt": x > y,
            "ge": x >= y,
            "scalar": x > 1,
            "and": torch.logical_and(x, y),
            "or": torch.logical_or(x, y),
            "xor": torch.logical_xor(x, y),
            "not": torch.logical_not(x),
        }

    if dtype == torch.bool:
        x = torch.tensor([True, True, False, False])
        check(f, x, x.roll(1))
        return
    x = floats(dtype) if dtype.is_floating_point else integers(dtype)
    y = x.roll(7)
    y[::3] = x[::3]
    check(f, x, y)


@pytest.mark.parametrize("dtype", EAGER_INTEGERS, ids=name_of)
def test_integer_arithmetic_wraps(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "add": x + y,
            "sub": x - y,
            "mul": x * y,
            "chain": (x * 3 + y) * y - 7,
            "neg": -x,
            "abs": x.abs(),
            "sign": x.sign(),
            "square": x.square(),
            "maximum": torch.maximum(x, y),
            "minimum": torch.minimum(x, y),
            "clamp": x.clamp(3, 50),
            "where": torch.where(x > y, x, y),
            "pow": x**3,
            "compare_wrapped": (x + y) > x,
            "wide": x.to(torch.int64) + (x + y),
        }

    x = integers(dtype)
    check(f, x, x.roll(5))


@pytest.mark.parametrize("dtype", EAGER_INTEGERS, ids=name_of)
def test_integer_division(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "floor": x // y,
            "trunc": torch.div(x, y, rounding_mode="trunc"),
            "remainder": x % y,
            "fmod": torch.fmod(x, y),
            "true": x / y,
            "by_constant": (x // 7, x % 7, torch.fmod(x, 7)),
            "negative_constant": (x // -7, x % -7, torch.fmod(x, -7)) if dtype.is_signed else (),
        }

    x = integers(dtype)
    check(f, x, divisors(x))


@pytest.mark.parametrize("dtype", [*EAGER_INTEGERS, torch.bool], ids=name_of)
def test_bitwise(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"and": x & y, "or": x | y, "xor": x ^ y, "not": ~x, "mixed": (~x & y) | (x ^ y)}

    x = torch.tensor([True, True, False, False]) if dtype == torch.bool else integers(dtype)
    check(f, x, x.roll(1))


@pytest.mark.parametrize("dtype", EAGER_INTEGERS, ids=name_of)
def test_shifts(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"left": x << n, "right": x >> n, "left_2": x << 2, "right_3": x >> 3}

    x = integers(dtype)
    n = (torch.arange(x.numel()) % (8 * dtype.itemsize)).to(dtype)
    check(f, x, n)


def test_shifts_past_the_width_shift_everything_out() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x << n, x >> n

    x = torch.tensor([5, -5, 1, -1], dtype=torch.int32)
    n = torch.tensor([32, 33, 40, 100], dtype=torch.int32)
    check(f, x, n)


@pytest.mark.parametrize("dtype", UNSIGNED_WIDE, ids=name_of)
def test_wide_unsigned_integers(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "add": x + y,
            "sub": x - y,
            "mul": x * y,
            "and": x & y,
            "or": x | y,
            "xor": x ^ y,
            "less": x < y,
            "equal": x == y,
            "where": torch.where(x < y, x, y),
            "float": x.to(torch.float32),
        }

    x = integers(dtype)
    y = x.roll(5)
    a, b = x.numpy(), y.numpy()
    with np.errstate(over="ignore"):
        expected = {
            "add": a + b,
            "sub": a - b,
            "mul": a * b,
            "and": a & b,
            "or": a | b,
            "xor": a ^ b,
            "less": a < b,
            "equal": a == b,
            "where": np.where(a < b, a, b),
            "float": a.astype(np.float32),
        }
    check(f, x, y, expected={k: torch.from_numpy(v) for k, v in expected.items()})


@pytest.mark.parametrize("source", DTYPES, ids=name_of)
def test_conversions(source: torch.dtype) -> None:
    """From one dtype to all: values that the target can hold (others are the platform's in C++ too), and integers
    of any size to integers and floats."""

    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name_of(target): x.to(target) for target in DTYPES}

    if source == torch.bool:
        x = torch.tensor([True, False, True])
    elif source.is_floating_point:
        x = torch.tensor([0.0, -0.0, 0.5, 1.5, 2.5, 99.75, 126.99, 3e-8, 0.1, 1.0009765625], dtype=source)
    else:
        x = integers(source)
    expected = {name_of(target): x.to(target) for target in DTYPES}
    check(f, x, expected=expected, tolerance={"rtol": 0, "atol": 0})


@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=name_of)
def test_narrowing_floats_rounds_to_even(source: torch.dtype) -> None:
    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"half": x.half(), "bfloat16": x.bfloat16(), "float": x.float(), "ints": x.clamp(-100, 100).int()}

    x = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 65504.0, 65519.0, 65520.0, -1e6, 6e-8, 3e-8, 2.9e-8]
    x += [2**-25 * 1.0001, NAN, INF, -INF, 3.4e38, 1e-40, -0.0, 2049.0, 2051.0]
    check(f, torch.tensor(x, dtype=source), tolerance={"rtol": 0, "atol": 0})


def test_negative_floats_to_signed_integers() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(d) for d in SIGNED]

    check(f, torch.tensor([-0.5, -1.5, -99.99, -127.0, 127.9]))


BITCASTS = [
    (torch.float32, torch.int32),
    (torch.int32, torch.float32),
    (torch.float16, torch.int16),
    (torch.int16, torch.float16),
    (torch.bfloat16, torch.int16),
    (torch.int16, torch.bfloat16),
    (torch.float64, torch.int64),
    (torch.int64, torch.float64),
    (torch.int8, torch.uint8),
    (torch.uint8, torch.int8),
    (torch.int32, torch.uint32),
    (torch.bfloat16, torch.float16),
    (torch.int32, torch.int16),
    (torch.float32, torch.uint8),
    (torch.int16, torch.int32),
]


@pytest.mark.parametrize(("source", "target"), BITCASTS, ids=lambda d: name_of(d))
def test_bitcasts(source: torch.dtype, target: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.view(target), (x + 1).view(target)

    x = (torch.arange(-32, 32) * 3).to(source) if source.is_signed else torch.arange(0, 64, dtype=source)
    check(f, x, tolerance={"rtol": 0, "atol": 0})


UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "lgamma", "digamma",
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_unary_functions(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: getattr(torch, name)(x) for name in UNARY}

    x = floats(dtype, 131)
    x[20:60] = torch.linspace(-0.999, 0.999, 40, dtype=torch.float64).to(dtype)
    if dtype == torch.float32:
        # What is rounded wins over what eager's own vector maths gives.
        check(f, x, expected={name: getattr(torch, name)(x.double()).float() for name in UNARY})
    else:
        check(f, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
def test_binary_functions(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "pow": torch.pow(x, y),
            "pow_int": x**3,
            "pow_half": x.abs() ** 0.5,
            "pow_negative": x**-2,
            "scalar_pow": 2.0**y,
            "atan2": torch.atan2(x, y),
            "hypot": torch.hypot(x, y),
            "nextafter": torch.nextafter(x, y),
            "logaddexp": torch.logaddexp(x, y),
            "xlogy": torch.xlogy(x, y),
            "ldexp": torch.ldexp(x, y.clamp(-9, 9).nan_to_num().int()),
        }

    x = floats(dtype)
    check(f, x, x.roll(7))


def test_activations() -> None:
    import torch.nn.functional as F

    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "gelu": F.gelu(x),
            "gelu_tanh": F.gelu(x, approximate="tanh"),
            "silu": F.silu(x),
            "softplus": F.softplus(x),
            "elu": F.elu(x),
            "leaky_relu": F.leaky_relu(x),
            "hardswish": F.hardswish(x),
            "hardtanh": F.hardtanh(x),
            "mish": F.mish(x),
            "logsigmoid": F.logsigmoid(x),
            "relu6": F.relu6(x),
        }

    check(f, torch.randn(200) * 4)


def test_mixed_dtypes_promote_as_in_torch() -> None:
    def f(h: torch.Tensor, b: torch.Tensor, s: torch.Tensor, i: torch.Tensor, u: torch.Tensor) -> list[torch.Tensor]:
        return [h + b, h + s, h * i, s + u, u * i, b + i, h + i.bool(), i / u, u + 1.5, i.bool() + 1, i.bool() * 2.5]

    x = torch.arange(1, 40)
    check(f, x.half(), x.bfloat16(), x.float(), x.int() * 1000, x.to(torch.uint8) + 200)


def test_int64_beyond_int32() -> None:
    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "sum": x + (1 << 40),
            "product": x * x,
            "compare": x > (1 << 33),
            "equal": x == (5 << 32),
            "where": torch.where(x < (1 << 32), x, -x),
            "down": x.to(torch.int32),
            "mask": x & 0xFFFFFFFF,
        }

    check(f, torch.tensor([5, 5 << 32, -(5 << 32), (1 << 33) + 1, (1 << 62) - 1, -1, 1 << 32]))


def test_iota_products_are_int64() -> None:
    """An index is computed in 32 bits; a value made of indices is not."""

    def f(n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        i = torch.arange(n.shape[0], device=n.device)
        return i * i, i * 100_000, (i * i > 1 << 33), i - i * i + n, i.to(torch.float32) * i

    check(f, torch.zeros(100_000, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool], ids=name_of)
def test_zero_dimensional_and_single_element(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        return [x + y, x.to(torch.float32) * 2, torch.where(y != 0, x, y), x == y]

    check(f, torch.tensor(1).to(dtype), torch.tensor([1]).to(dtype))


def test_empty_tensors() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x + 1, x * x, torch.cat([x, y]), y.sum(1), (x.t() + 1), x.sum(), x.any()]

    check(f, torch.empty(0, 5), torch.empty(3, 5))


def test_scalars_of_every_kind() -> None:
    """Zero-dimensional CPU tensors beside device tensors travel in the argument block."""
    scalars = [torch.tensor(2).to(d) for d in DTYPES if d not in UNSIGNED[1:]]

    def f(x: torch.Tensor, *scalars: torch.Tensor) -> list[torch.Tensor]:
        return [x * s for s in scalars]

    x = torch.randn(9)
    same(compiled(f)(x.to("vulkan"), *scalars), f(x, *scalars))


def test_float_arguments_that_vary() -> None:
    def f(x: torch.Tensor, a: float, n: int) -> torch.Tensor:
        return x * a + n

    x = torch.randn(9)
    g = compiled(f, dynamic=True)
    for a, n in [(2.5, 3), (-1.25, 7), (0.0, 2)]:
        same(g(x, a, n), f(x, a, n))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8], ids=name_of)
def test_a_widened_integer_compared_with_a_constant(dtype):
    """Mesa 22.3's lavapipe gets 64-bit comparisons of what was 32-bit wrong, also those inside min and max."""

    def f(x):
        wide = x.to(torch.int64)
        return wide <= 5, wide > -1, (wide >= 0) & (wide != 2), wide.clamp(1, 4), wide.clamp_max(3), wide == 5

    check(f, torch.tensor([0, 1, 2, 5, 6, 100]).to(dtype))
