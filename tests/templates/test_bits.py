"""Functions with one right answer: bit tests, rounding, remainders, conversions between formats."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from samples import any_bits, may_be_flushed, pairs, special, uniform

HALVES = np.arange(65536, dtype=np.uint16)


def assert_same(got: np.ndarray, want: np.ndarray, *arrays: np.ndarray, where: np.ndarray | None = None) -> None:
    """Bitwise the same, all NaN being one."""
    wrong = got != want
    if got.dtype.kind == "f":
        wrong = ~((got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want))
    wrong &= ~may_be_flushed(want, *arrays)
    wrong = np.flatnonzero(wrong if where is None else wrong & where)
    assert not wrong.size, [(*(a[i] for a in arrays), got[i], want[i]) for i in wrong[:5]]


def values(rng: np.random.Generator) -> np.ndarray:
    halves = (np.arange(-20, 20) * 0.5).astype(np.float32)
    return np.concatenate([special(), halves, any_bits(rng, 20000), uniform(rng, -1e4, 1e4, 5000)])


def two(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    first, second = pairs(special())
    n = 10000
    a = np.concatenate([first, any_bits(rng, n), uniform(rng, -30, 30, n), uniform(rng, -1e6, 1e6, n)])
    b = np.concatenate([second, any_bits(rng, n), uniform(rng, -30, 30, n), uniform(rng, -3, 3, n)])
    return a, b


@pytest.mark.parametrize("test", ["isnan", "isinf", "isfinite", "signbit"])
def test_bit_tests(evaluate, rng, test):
    x = values(rng)
    got = evaluate(f"vk_{test}(a) ? 1 : 0", x, out=np.int32)
    np.testing.assert_array_equal(got.astype(bool), getattr(np, test)(x))


def test_nan_is_seen_when_the_shader_makes_it(evaluate):
    """A driver that assumes no NaN would fold these."""
    x = np.float32([0.0, np.inf, -1.0, 1.0])
    got = evaluate(
        "(vk_isnan(a - a) ? 1 : 0) + (vk_isnan(a / a) ? 2 : 0) + (vk_isinf(1.0 / a) ? 4 : 0)", x, out=np.int32
    )
    assert got.tolist() == [6, 3, 0, 0]


@pytest.mark.parametrize("name", ["abs", "sign", "floor", "ceil", "trunc", "round"])
def test_rounding(evaluate, rng, name):
    x = values(rng)
    assert_same(evaluate(f"vk_{name}(a)", x), getattr(torch, name)(torch.from_numpy(x)).numpy(), x)


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("max", torch.maximum),
        ("min", torch.minimum),
        ("fmax", np.fmax),
        ("fmin", np.fmin),
        ("copysign", torch.copysign),
        ("nextafter", torch.nextafter),
    ],
)
def test_of_two(evaluate, rng, name, peer):
    a, b = two(rng)
    want = peer(a, b) if isinstance(peer, np.ufunc) else peer(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    zeros = (a == 0) & (b == 0) if name.endswith(("max", "min")) else np.zeros(len(a), bool)  # either zero will do
    assert_same(evaluate(f"vk_{name}(a, b)", a, b), want, a, b, where=~zeros)


def test_frexp_and_ldexp(evaluate, rng):
    x = values(rng)
    mantissa, exponent = np.frexp(x)
    assert_same(evaluate("vk_frexp_mantissa(a)", x), mantissa, x)
    assert_same(evaluate("vk_frexp_exponent(a)", x, out=np.int32), np.where(np.isfinite(x), exponent, 0), x)
    n = rng.integers(-320, 320, len(x)).astype(np.int32)
    with np.errstate(all="ignore"):
        assert_same(evaluate("vk_ldexp(a, b)", x, n), np.ldexp(x, n), x, n)


def exact_fmod(a: float, b: float) -> float:
    """By rationals: the vectorised fmod of some CPUs gives NaN where the quotient has over 24 bits."""
    rest = abs(Fraction(a)) % abs(Fraction(b))
    return float(np.copysign(float(rest), a))


def test_fmod_is_exact(evaluate, rng):
    a, b = (array[np.isfinite(array)] for array in (any_bits(rng, 3000), any_bits(rng, 3000)))
    a, b = a[:2900], b[:2900]
    b[b == 0] = 1
    want = np.array([exact_fmod(float(x), float(y)) for x, y in zip(a, b, strict=True)], np.float32)
    assert_same(evaluate("vk_fmod(a, b)", a, b), want, a, b)


@pytest.mark.parametrize(
    ("name", "peer"), [("fmod", torch.fmod), ("remainder", torch.remainder), ("div_floor", torch.floor_divide)]
)
def test_remainders_are_torchs(evaluate, rng, name, peer):
    a, b = two(rng)
    want = peer(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    # See exact_fmod for the NaN of a quotient that is too long.
    where = ~np.isnan(want) | ~np.isfinite(a) | ~np.isfinite(b) | (b == 0)
    # A device that flushes subnormals does so with the remainder before the divisor is added, too.
    with np.errstate(all="ignore"):
        assert_same(evaluate(f"vk_{name}(a, b)", a, b), want, a, b, np.fmod(a, b), where=where)


def test_halves_to_floats(evaluate):
    assert_same(evaluate("vk_f16_bits_to_f32(uint(a))", HALVES), HALVES.view(np.float16).astype(np.float32), HALVES)
    assert_same(evaluate("vk_bf16_to_f32(a)", HALVES), (HALVES.astype(np.uint32) << 16).view(np.float32), HALVES)


def around_halves() -> np.ndarray:
    """Every half, the midpoint above it and the floats next to that midpoint: where rounding to nearest even
    decides."""
    finite = HALVES[:0x7C00].view(np.float16).astype(np.float32)
    middle = (finite + np.append(finite[1:], np.float32(65536))) / 2
    up, down = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(0))
    x = np.concatenate([finite, middle, up, down])
    return np.concatenate([x, -x])


def test_floats_to_halves(evaluate, rng):
    x = np.concatenate([around_halves(), special(), any_bits(rng, 50000)])
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    assert_same(evaluate("vk_f32_to_f16(a)", x, out=np.float16), want, x)
    bits = evaluate("vk_f32_to_f16_bits(a)", x, out=np.uint16)
    assert_same(bits.view(np.float16), want, x)


def test_floats_to_bfloat16(evaluate, rng):
    exact = (HALVES.astype(np.uint32) << 16).view(np.float32)
    middle = ((HALVES.astype(np.uint32) << 16) | 0x8000).view(np.float32)
    with np.errstate(invalid="ignore"):
        below = np.nextafter(middle, np.float32(0))
    x = np.concatenate([exact, middle, below, special(), any_bits(rng, 50000)])
    want = torch.from_numpy(x).to(torch.bfloat16)
    got = evaluate("vk_f32_to_bf16(a)", x, out=np.uint16)
    assert_same((got.astype(np.uint32) << 16).view(np.float32), want.float().numpy(), x)
    assert_same(evaluate("vk_round_bf16(a)", x), want.float().numpy(), x)
    mantissas = x.view(np.uint32) & 0x7FFFFF  # not all but 2
    usual = np.isnan(x) | (np.abs(x) >= 2.0**-126) & (np.abs(x) < 2.0**111) & (mantissas < 0x7FFF00)
    assert_same(evaluate("vk_round_bf16_fma(a)", x), want.float().numpy(), x, where=usual)
    last = np.arange(0x3FFFFF00, 0x40000000, dtype=np.uint32).view(np.float32)
    assert set(evaluate("vk_round_bf16_fma(a)", last)) <= {np.float32(1.9921875), np.float32(2.0)}


def nearest_bfloat16(x: np.ndarray) -> np.ndarray:
    """float64 rounded once to bfloat16, as float64: to a multiple of the last place, ties to even."""
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, -126)
        unit = np.ldexp(1.0, exponent - 7)
        rounded = np.round(x / unit) * unit
        return np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, x), rounded)


def test_doubles_to_narrower_floats(evaluate, rng):
    """One rounding, not two: values just beside a midpoint that a float would put on it."""
    beside = around_halves().astype(np.float64)
    with np.errstate(invalid="ignore"):
        bf16_middle = ((HALVES.astype(np.uint32) << 16) | 0x8000).view(np.float32).astype(np.float64)
        floats = any_bits(rng, 20000).astype(np.float64)
    x = np.concatenate([beside * (1 + 2.0**-40), beside * (1 - 2.0**-40), bf16_middle * (1 + 2.0**-40), bf16_middle])
    x = np.concatenate([x, floats * (1 + 2.0**-25), special(np.float64), any_bits(rng, 20000, np.float64)])
    x = np.concatenate([x, 10.0 ** rng.uniform(-50, 45, 20000)])
    with np.errstate(all="ignore"):
        assert_same(evaluate("vk_f64_to_f32(a)", x), x.astype(np.float32), x)
        assert_same(evaluate("vk_f64_to_f16(a)", x, out=np.float16), x.astype(np.float16), x)
    got = evaluate("vk_f64_to_bf16(a)", x, out=np.uint16)
    got = (got.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    assert_same(got, nearest_bfloat16(x), x)


WIDTHS = {
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "u16": np.uint16,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
}


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("width", sorted(WIDTHS))
def test_floats_to_integers(evaluate, rng, width, source):
    dtype, real = WIDTHS[width], {"f32": np.float32, "f64": np.float64}[source]
    info = np.iinfo(dtype)
    x = np.concatenate([rng.uniform(info.min * 0.99, info.max * 0.99, 3000), rng.uniform(-2, 2, 300)])
    x = x[(x > info.min - 1) & ((x >= 0) | (info.min < 0) | (x > -1))].astype(real)
    name = f"vk_{source}_to_{width}(a)"
    assert_same(evaluate(name, x, out=dtype), np.trunc(x).astype(dtype), x)
    if width in ("i32", "i64"):
        outside = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30], real)
        assert (evaluate(name, outside, out=dtype) == info.min).all()


@pytest.mark.parametrize("width", ["i8", "u8", "i16", "u16"])
def test_wrapping(evaluate, rng, width):
    x = rng.integers(-(2**31), 2**31, 5000).astype(np.int32)
    assert_same(evaluate(f"vk_wrap_{width}(a)", x, out=np.int32), x.astype(WIDTHS[width]).astype(np.int32), x)
