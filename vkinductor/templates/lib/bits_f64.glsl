// The functions of bits.glsl for doubles.

#define VK_INF_F64 packDouble2x32(uvec2(0u, 0x7ff00000u))
#define VK_NAN_F64 packDouble2x32(uvec2(0u, 0x7ff80000u))

bool vk_isnan_f64(double x) {
    uvec2 u = unpackDouble2x32(x);
    return ((u.y & 0x7fffffffu) | uint(u.x != 0u)) > 0x7ff00000u;
}

bool vk_isinf_f64(double x) {
    uvec2 u = unpackDouble2x32(x);
    return (u.y & 0x7fffffffu) == 0x7ff00000u && u.x == 0u;
}

bool vk_isfinite_f64(double x) {
    return (unpackDouble2x32(x).y & 0x7ff00000u) != 0x7ff00000u;
}

bool vk_signbit_f64(double x) {
    return (unpackDouble2x32(x).y & 0x80000000u) != 0u;
}

double vk_abs_f64(double x) {
    uvec2 u = unpackDouble2x32(x);
    return packDouble2x32(uvec2(u.x, u.y & 0x7fffffffu));
}

double vk_copysign_f64(double x, double y) {
    uvec2 u = unpackDouble2x32(x);
    return packDouble2x32(uvec2(u.x, (u.y & 0x7fffffffu) | (unpackDouble2x32(y).y & 0x80000000u)));
}

double vk_sign_f64(double x) {
    return vk_isnan_f64(x) ? 0.0lf : double(int(x > 0.0lf) - int(x < 0.0lf));
}

double vk_max_f64(double a, double b) {
    return vk_isnan_f64(a) ? a : (vk_isnan_f64(b) ? b : (a < b ? b : a));
}

double vk_min_f64(double a, double b) {
    return vk_isnan_f64(a) ? a : (vk_isnan_f64(b) ? b : (b < a ? b : a));
}

double vk_fmax_f64(double a, double b) {
    return vk_isnan_f64(a) ? b : (vk_isnan_f64(b) ? a : (a < b ? b : a));
}

double vk_fmin_f64(double a, double b) {
    return vk_isnan_f64(a) ? b : (vk_isnan_f64(b) ? a : (b < a ? b : a));
}

double vk_nextafter_f64(double x, double y) {
    if (vk_isnan_f64(x) || vk_isnan_f64(y)) {
        return VK_NAN_F64;
    }
    uint64_t ux = doubleBitsToUint64(x);
    uint64_t uy = doubleBitsToUint64(y);
    uint64_t sign = uint64_t(0x8000000000000000ul);
    if (ux == uy || ((ux | uy) & ~sign) == uint64_t(0)) {
        return y;
    }
    if ((ux & ~sign) == uint64_t(0)) {
        return uint64BitsToDouble((uy & sign) | uint64_t(1));
    }
    int64_t ix = int64_t(ux) < int64_t(0) ? int64_t(sign - ux) : int64_t(ux);
    int64_t iy = int64_t(uy) < int64_t(0) ? int64_t(sign - uy) : int64_t(uy);
    bool away = (ix < iy) == (int64_t(ux) >= int64_t(0));
    return uint64BitsToDouble(away ? ux + uint64_t(1) : ux - uint64_t(1));
}

// 2^n for -1022 <= n <= 1023
double vk_power2_f64(int n) {
    return packDouble2x32(uvec2(0u, uint(1023 + n) << 20));
}

// x * 2^n for n of any size, rounded once where the result is subnormal.
double vk_ldexp_f64(double x, int n) {
    n = clamp(n, -2200, 2200);
    int first = clamp(n, -1000, 1000);
    int second = clamp(n - first, -1000, 1000);
    int third = n - first - second;
    precise double y = x * vk_power2_f64(n < -1000 ? third : first);
    y = y * vk_power2_f64(second);
    y = y * vk_power2_f64(n < -1000 ? first : third);
    return y;
}

// Places to move the highest bit set of a subnormal's 52 bits to bit 52.
int vk_subnormal_shift_f64(uvec2 u) {
    uint high = u.y & 0x000fffffu;
    return high != 0u ? 20 - findMSB(high) : 52 - findMSB(u.x);
}

double vk_frexp_mantissa_f64(double x) {
    uvec2 u = unpackDouble2x32(x);
    uint high = u.y & 0x7fffffffu;
    if ((high | u.x) == 0u || high >= 0x7ff00000u) {
        return x;
    }
    if (high < 0x00100000u) {
        uint64_t m = (uint64_t(high) << 32 | uint64_t(u.x)) << vk_subnormal_shift_f64(u);
        u = uvec2(uint(m), (u.y & 0x80000000u) | uint(m >> 32));
    }
    return packDouble2x32(uvec2(u.x, (u.y & 0x800fffffu) | 0x3fe00000u));
}

int vk_frexp_exponent_f64(double x) {
    uvec2 u = unpackDouble2x32(x);
    uint high = u.y & 0x7fffffffu;
    if ((high | u.x) == 0u || high >= 0x7ff00000u) {
        return 0;
    }
    return high < 0x00100000u ? -1021 - vk_subnormal_shift_f64(u) : int(high >> 20) - 1022;
}

double vk_trunc_f64(double x) {
    return trunc(x);
}

double vk_floor_f64(double x) {
    return floor(x);
}

double vk_ceil_f64(double x) {
    return ceil(x);
}

double vk_round_f64(double x) {
    return roundEven(x);
}

double vk_sqrt_f64(double x) {
    return x < 0.0lf ? VK_NAN_F64 : sqrt(x);
}

double vk_rsqrt_f64(double x) {
    return x == 0.0lf ? vk_copysign_f64(VK_INF_F64, x) : 1.0lf / vk_sqrt_f64(x);
}

// |x| mod |y| for finite x and finite y != 0
double vk_fmod_magnitude_f64(double x, double y) {
    uint64_t ux = doubleBitsToUint64(x) & uint64_t(0x7ffffffffffffffful);
    uint64_t uy = doubleBitsToUint64(y) & uint64_t(0x7ffffffffffffffful);
    if (ux < uy) {
        return uint64BitsToDouble(ux);
    }
    uint64_t hidden = uint64_t(1) << 52;
    int ex = max(int(ux >> 52), 1);
    int ey = max(int(uy >> 52), 1);
    uint64_t mx = (ux & (hidden - uint64_t(1))) | (ux >= hidden ? hidden : uint64_t(0));
    uint64_t my = (uy & (hidden - uint64_t(1))) | (uy >= hidden ? hidden : uint64_t(0));
    int steps = ex - ey;
    mx %= my;
    while (steps > 0) {
        int shift = min(steps, 11);
        mx = (mx << shift) % my;
        steps -= shift;
    }
    if (mx == uint64_t(0)) {
        return 0.0lf;
    }
    uint high = uint(mx >> 32);
    int top = high != 0u ? 32 + findMSB(high) : findMSB(uint(mx));
    int up = min(52 - top, ey - 1);
    mx <<= up;
    uint64_t field = mx >= hidden ? uint64_t(ey - up) << 52 : uint64_t(0);
    return uint64BitsToDouble((mx & (hidden - uint64_t(1))) | field);
}

double vk_fmod_f64(double x, double y) {
    if (!vk_isfinite_f64(x) || vk_isnan_f64(y) || y == 0.0lf) {
        return VK_NAN_F64;
    }
    return vk_isinf_f64(y) ? x : vk_copysign_f64(vk_fmod_magnitude_f64(x, y), x);
}

double vk_remainder_f64(double x, double y) {
    double r = vk_fmod_f64(x, y);
    return r != 0.0lf && vk_signbit_f64(r) != vk_signbit_f64(y) ? r + y : r;
}

double vk_div_floor_f64(double x, double y) {
    if (y == 0.0lf) {
        return x / y;
    }
    double r = vk_fmod_f64(x, y);
    precise double q = (x - r) / y;
    if (r != 0.0lf && vk_signbit_f64(r) != vk_signbit_f64(y)) {
        q = q - 1.0lf;
    }
    if (q == 0.0lf) {
        return vk_copysign_f64(0.0lf, x / y);
    }
    precise double whole = floor(q);
    return q - whole > 0.5lf ? whole + 1.0lf : whole;
}

// The upper 26 bits of x.
double vk_upper_f64(double x) {
    uvec2 u = unpackDouble2x32(x);
    return packDouble2x32(uvec2(u.x & 0xf8000000u, u.y));
}

// a * b - product, exactly, where product is the rounded a * b.
double vk_product_error_f64(double a, double b, double product) {
    double a1 = vk_upper_f64(a);
    double b1 = vk_upper_f64(b);
    precise double a2 = a - a1;
    precise double b2 = b - b1;
    precise double e = a1 * b1 - product;
    e = e + a1 * b2;
    e = e + a2 * b1;
    e = e + a2 * b2;
    return e;
}

double vk_hypot_f64(double x, double y) {
    double a = vk_abs_f64(x);
    double b = vk_abs_f64(y);
    if (vk_isinf_f64(a) || vk_isinf_f64(b)) {
        return VK_INF_F64;
    }
    if (vk_isnan_f64(a) || vk_isnan_f64(b)) {
        return VK_NAN_F64;
    }
    double large = max(a, b);
    double small = min(a, b);
    if (large == 0.0lf) {
        return 0.0lf;
    }
    int exponent = vk_frexp_exponent_f64(large);
    double u = vk_ldexp_f64(large, -exponent);
    double v = vk_ldexp_f64(small, -exponent);
    return vk_ldexp_f64(sqrt(u * u + v * v), exponent);
}
