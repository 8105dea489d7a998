"""What the function library holds: for each operator the GLSL function, its arguments, its result and its
error.

Code generation looks operators up here by the names that torch and Inductor use. The error figures are
promises: the tests measure every function against them on the device, over all magnitudes, infinities and NaN
included.

The kinds of arguments and results:

* "real": `float`, or `double` in the function whose name has the suffix `_f64`;
* "integer": one of `int`, `uint`, `int64_t`, `uint64_t`, all arguments the same (GLSL overloads of one name);
* anything else is that GLSL type.

The polynomials behind them are fits of the project's own; `tests/templates/fits.py` makes them anew.

Where a device's own division or square root is looser than a CPU's (Vulkan allows 2.5 ulp), these figures are
too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """One library function.

    name: of the `float` form. arguments, result: kinds, see the module. ulp: largest error in units in the
    last place of a float, 0 for exact results. absolute: an error below this is allowed as well, for
    functions that lose relative precision near a zero. double: whether there is a form for doubles; its
    relative error is below 1e-14 wherever `absolute` is 0, its absolute one below 1e-13 elsewhere.
    """

    name: str
    arguments: tuple[str, ...] = ("real",)
    result: str = "real"
    ulp: float = 0.0
    absolute: float = 0.0
    double: bool = True

    def spelling(self, double: bool = False) -> str:
        """The GLSL name, of the form for doubles if `double`. Raises `KeyError` where there is no such
        form."""
        if not double:
            return self.name
        if not self.double:
            raise KeyError(f"{self.name} has no form for doubles")
        return f"{self.name}_f64"


_TWO = ("real", "real")
_INTEGERS = ("integer", "integer")
_RANDOM = ("int64_t", "int64_t")

# operator -> function. Operators are Inductor's where it has one.
FUNCTIONS: dict[str, Function] = {
    # exp_log.glsl, pow.glsl
    "exp": Function("vk_exp", ulp=1.1),
    "exp_near": Function("vk_exp_near", ulp=5.0, double=False),
    "exp2": Function("vk_exp2", ulp=1.4),
    "expm1": Function("vk_expm1", ulp=1.8),
    "log": Function("vk_log", ulp=1.1),
    "log2": Function("vk_log2", ulp=1.6),
    "log10": Function("vk_log10", ulp=2.2),
    "log1p": Function("vk_log1p", ulp=3.0),
    "sigmoid": Function("vk_sigmoid", ulp=3.0),
    "sqrt": Function("vk_sqrt", ulp=1.0),
    "rsqrt": Function("vk_rsqrt", ulp=2.0),
    "pow": Function("vk_pow", _TWO, ulp=3.5),
    # hyperbolic.glsl
    "tanh": Function("vk_tanh", ulp=2.0),
    "sinh": Function("vk_sinh", ulp=2.0),
    "cosh": Function("vk_cosh", ulp=2.0),
    # trig.glsl
    "sin": Function("vk_sin", ulp=3.0),
    "cos": Function("vk_cos", ulp=3.0),
    "tan": Function("vk_tan", ulp=4.0),
    # inverse_trig.glsl
    "asin": Function("vk_asin", ulp=3.0),
    "acos": Function("vk_acos", ulp=2.0),
    "atan": Function("vk_atan", ulp=2.5),
    "atan2": Function("vk_atan2", _TWO, ulp=3.0),
    "asinh": Function("vk_asinh", ulp=3.5),
    "acosh": Function("vk_acosh", ulp=3.5),
    "atanh": Function("vk_atanh", ulp=3.5),
    "hypot": Function("vk_hypot", _TWO, ulp=2.0),
    # erf.glsl
    "erf": Function("vk_erf", ulp=1.5),
    "erfc": Function("vk_erfc", ulp=4.0),
    "erfcx": Function("vk_erfcx", ulp=4.0),
    "erfinv": Function("vk_erfinv", ulp=3.5),
    "ndtr": Function("vk_ndtr", ulp=4.5),
    "log_ndtr": Function("vk_log_ndtr", ulp=6.0),
    "ndtri": Function("vk_ndtri", ulp=4.5),
    # gamma.glsl
    "lgamma": Function("vk_lgamma", ulp=4.0, absolute=3e-6),
    "digamma": Function("vk_digamma", ulp=4.0, absolute=3e-6),
    # bessel.glsl
    "bessel_j0": Function("vk_bessel_j0", ulp=4.0, absolute=1e-6),
    "bessel_j1": Function("vk_bessel_j1", ulp=4.0, absolute=1e-6),
    "bessel_y0": Function("vk_bessel_y0", ulp=8.0, absolute=1e-6),
    "bessel_y1": Function("vk_bessel_y1", ulp=8.0, absolute=1e-6),
    "i0": Function("vk_i0", ulp=6.0),
    "i0e": Function("vk_i0e", ulp=4.0),
    "i1": Function("vk_i1", ulp=6.0),
    "i1e": Function("vk_i1e", ulp=4.0),
    "modified_bessel_i0": Function("vk_i0", ulp=6.0),
    "modified_bessel_i1": Function("vk_i1", ulp=6.0),
    "modified_bessel_k0": Function("vk_k0", ulp=6.0, absolute=1e-6),
    "modified_bessel_k1": Function("vk_k1", ulp=6.0, absolute=1e-6),
    "scaled_modified_bessel_k0": Function("vk_k0e", ulp=6.0, absolute=3e-6),
    "scaled_modified_bessel_k1": Function("vk_k1e", ulp=6.0, absolute=3e-6),
    "spherical_bessel_j0": Function("vk_spherical_bessel_j0", ulp=4.0, absolute=1e-7),
    # airy.glsl
    "airy_ai": Function("vk_airy_ai", ulp=12.0, absolute=1e-6),
    # igamma.glsl
    "igamma": Function("vk_igamma", _TWO, ulp=8.0, absolute=3e-6),
    "igammac": Function("vk_igammac", _TWO, ulp=8.0, absolute=3e-6),
    "gammainc": Function("vk_igamma", _TWO, ulp=8.0, absolute=3e-6),
    "gammaincc": Function("vk_igammac", _TWO, ulp=8.0, absolute=3e-6),
    # zeta.glsl
    "zeta": Function("vk_zeta", _TWO, ulp=8.0),
    "polygamma": Function("vk_polygamma", _TWO, ulp=16.0, absolute=3e-6),
    # polynomials.glsl: of the sum of the sizes of the terms, degrees up to 12
    "chebyshev_polynomial_t": Function("vk_chebyshev_t", _TWO, ulp=16.0),
    "chebyshev_polynomial_u": Function("vk_chebyshev_u", _TWO, ulp=24.0),
    "chebyshev_polynomial_v": Function("vk_chebyshev_v", _TWO, ulp=16.0),
    "chebyshev_polynomial_w": Function("vk_chebyshev_w", _TWO, ulp=16.0),
    "shifted_chebyshev_polynomial_t": Function("vk_shifted_chebyshev_t", _TWO, ulp=16.0),
    "shifted_chebyshev_polynomial_u": Function("vk_shifted_chebyshev_u", _TWO, ulp=24.0),
    "shifted_chebyshev_polynomial_v": Function("vk_shifted_chebyshev_v", _TWO, ulp=16.0),
    "shifted_chebyshev_polynomial_w": Function("vk_shifted_chebyshev_w", _TWO, ulp=16.0),
    "hermite_polynomial_h": Function("vk_hermite_h", _TWO, ulp=16.0),
    "hermite_polynomial_he": Function("vk_hermite_he", _TWO, ulp=16.0),
    "laguerre_polynomial_l": Function("vk_laguerre_l", _TWO, ulp=16.0),
    "legendre_polynomial_p": Function("vk_legendre_p", _TWO, ulp=16.0),
    # divide.glsl
    "truediv": Function("vk_div", _TWO, ulp=2.5, double=False),
    "div_rn": Function("vk_div_rn", _TWO, ulp=0.5001, double=False),
    # fmod.glsl
    "fmod": Function("vk_fmod", _TWO),
    "remainder": Function("vk_remainder", _TWO, ulp=0.5),
    "floor_divide": Function("vk_div_floor", _TWO),
    # bits.glsl
    "abs": Function("vk_abs"),
    "sign": Function("vk_sign"),
    "signbit": Function("vk_signbit", result="bool"),
    "isnan": Function("vk_isnan", result="bool"),
    "isinf": Function("vk_isinf", result="bool"),
    "isfinite": Function("vk_isfinite", result="bool"),
    "copysign": Function("vk_copysign", _TWO),
    "nextafter": Function("vk_nextafter", _TWO),
    "maximum": Function("vk_max", _TWO),
    "minimum": Function("vk_min", _TWO),
    "fmax": Function("vk_fmax", _TWO),
    "fmin": Function("vk_fmin", _TWO),
    "ldexp": Function("vk_ldexp", ("real", "int")),
    "frexp_mantissa": Function("vk_frexp_mantissa"),
    "frexp_exponent": Function("vk_frexp_exponent", result="int"),
    "floor": Function("vk_floor"),
    "ceil": Function("vk_ceil"),
    "trunc": Function("vk_trunc"),
    "round": Function("vk_round"),
    # integer.glsl
    "integer_floordiv": Function("vk_floordiv", _INTEGERS, "integer", double=False),
    "integer_truncdiv": Function("vk_truncdiv", _INTEGERS, "integer", double=False),
    "integer_remainder": Function("vk_remainder", _INTEGERS, "integer", double=False),
    "integer_fmod": Function("vk_fmod", _INTEGERS, "integer", double=False),
    "gcd": Function("vk_gcd", _INTEGERS, "integer", double=False),
    "integer_pow": Function("vk_ipow", _INTEGERS, "integer", double=False),
    "bitwise_left_shift": Function("vk_shl", ("integer", "int", "int"), "integer", double=False),
    "bitwise_right_shift": Function("vk_shr", ("integer", "int", "int"), "integer", double=False),
    # random.glsl
    "rand": Function("vk_rand", _RANDOM, "float", double=False),
    "randn": Function("vk_randn", _RANDOM, "float", double=False),
    "randint64": Function("vk_randint64", (*_RANDOM, "int64_t", "int64_t"), "int64_t", double=False),
}

# (register, storage) -> function that rounds or converts. Missing pairs are plain GLSL constructors. A result
# of 16 bits is a macro around the function named with `_bits`, so that only 16-bit storage is asked of the
# device.
CONVERSIONS: dict[tuple[str, str], str] = {
    ("uint16_t", "float"): "vk_bf16_to_f32",
    ("float", "float16_t"): "vk_f32_to_f16",
    ("float", "bfloat16"): "vk_f32_to_bf16",
    ("double", "float"): "vk_f64_to_f32",
    ("double", "float16_t"): "vk_f64_to_f16",
    ("double", "bfloat16"): "vk_f64_to_bf16",
    **{
        (register, storage): f"vk_{short}_to_{width}"
        for register, short in (("float", "f32"), ("double", "f64"))
        for storage, width in (
            ("int8_t", "i8"),
            ("uint8_t", "u8"),
            ("int16_t", "i16"),
            ("uint16_t", "u16"),
            ("int", "i32"),
            ("uint", "u32"),
            ("int64_t", "i64"),
            ("uint64_t", "u64"),
        )
    },
    ("int", "int8_t"): "vk_wrap_i8",
    ("int", "uint8_t"): "vk_wrap_u8",
    ("int", "int16_t"): "vk_wrap_i16",
    ("int", "uint16_t"): "vk_wrap_u16",
}
