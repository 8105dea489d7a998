// Exponentials and logarithms. Polynomials are minimax fits (Remez exchange) of our own on the interval named beside them;
// the two-part constants of ln 2 and log10 2 are those of Cephes (Moshier), whose first part has so few bits that its
// product with an exponent is exact. No fused multiply-add is assumed, and `precise` keeps a driver from making one or from
// cancelling a compensation.

// y * 2^n for |n| <= 252, in two steps so that neither factor leaves the range.
float vk_scale2(float y, int n) {
    int half_n = n >> 1;
    precise float first = y * uintBitsToFloat(uint(127 + half_n) << 23);
    return first * uintBitsToFloat(uint(127 + n - half_n) << 23);
}

// (e^r - 1 - r) / r^2 on |r| <= ln(2)/2.
float vk_exp_tail(float r) {
    float p = 1.991449826e-04;
    p = p * r + 1.394110732e-03;
    p = p * r + 8.333272301e-03;
    p = p * r + 4.166635498e-02;
    p = p * r + 1.666666716e-01;
    return p * r + 0.5;
}

// e^x = m * 2^n: returns m, in [sqrt(1/2), sqrt(2)] or beyond for x above `top`; NaN for NaN. x > -1000; `shifted` is n +
// 0x4b400000, whose lower bits are n's. Elementwise kernels in half precision are bound by their arithmetic: adding 1.5 * 2^23 rounds to
// a whole number without the slow conversions, and a fused multiply-add, where there is one, saves instructions.
float vk_exp_parts(float x, float top, out int shifted) {
    precise float sum = fma(min(x, top), 1.44269504, 12582912.0);
    precise float n = sum - 12582912.0;
    precise float r = fma(n, 2.12194440e-4, fma(n, -0.693359375, x));
    shifted = floatBitsToInt(sum);
    // (e^r - 1 - r) / r^2 on |r| <= ln(2)/2.
    float p = 1.381459857e-03;
    p = fma(p, r, 8.368716878e-03);
    p = fma(p, r, 4.166838805e-02);
    p = fma(p, r, 1.666652063e-01);
    p = fma(p, r, 4.999999345e-01);
    precise float y = 1.0 + fma(r * r, p, r);
    return y;
}

// With HALF_POWERS, for what is rounded to 16 bits: the device's own exp2.
float vk_exp(float x) {
#ifdef HALF_POWERS
    return exp2(x * 1.44269504);
#else
    int shifted;
    float y = vk_exp_parts(x < -105.0 ? -105.0 : x, 89.0, shifted);
    // In two steps, so that neither factor leaves the range.
    int n = shifted - 0x4b400000;
    int half_n = n >> 1;
    precise float first = y * intBitsToFloat((half_n << 23) + 0x3f800000);
    return first * intBitsToFloat(((n - half_n) << 23) + 0x3f800000);
#endif
}

// e^x in half of the instructions, for exponentials that are summed or divided by their sum: softmax in half precision is
// bound by its arithmetic. The device's own exp2 is good to 3 + 2 |y| units (Vulkan, "Precision and Operation of SPIR-V
// Instructions"), and |y| is at most 1/2 but for results that are subnormal or infinite: n stays within +-127.
float vk_exp_near(float x) {
#ifdef HALF_POWERS
    return exp2(x * 1.44269504);
#else
    precise float sum = fma(min(max(x, -87.0), 88.0), 1.44269504, 12582912.0);
    precise float n = sum - 12582912.0;
    precise float r = fma(n, 2.12194440e-4, fma(n, -0.693359375, x));
    return exp2(r * 1.44269504) * intBitsToFloat((floatBitsToInt(sum) << 23) + 0x3f800000);
#endif
}

// e^x of x <= 0 that is only added up, where one x is 0: the error in units of the sum's last place is no more than some
// |x| e^x. log_softmax and NLL of 32768 rows of 1024 halves take 24 us on an H200 instead of 31.
float vk_exp_in_sum(float x) {
    return exp2(x * 1.44269504);
}

// (2^r - 1) / r on |r| <= 1/2
float vk_exp2_fraction(float r) {
    float p = 1.535269403e-04;
    p = p * r + 1.339900307e-03;
    p = p * r + 9.618441574e-03;
    p = p * r + 5.550332367e-02;
    p = p * r + 2.402264774e-01;
    return p * r + 6.931471825e-01;
}

float vk_exp2(float x) {
    float t = clamp(x, -152.0, 129.0);
    float n = floor(t + 0.5);
    float r = t - n;
    return vk_isnan(x) ? x : vk_scale2(1.0 + r * vk_exp2_fraction(r), int(n));
}

// 2^x for |x| < 126, without what the ends of the range and NaN take. Adding 1.5 * 2^23 rounds to a whole number, whose
// lower bits go to the exponent.
float vk_exp2_within(float x) {
    precise float sum = x + 12582912.0;
    precise float n = sum - 12582912.0;
    float r = x - n;
    float y = 1.0 + r * vk_exp2_fraction(r);
    return intBitsToFloat(floatBitsToInt(y) + (floatBitsToInt(sum) << 23));
}

float vk_expm1(float x) {
    float t = clamp(x, -20.0, 89.0);
    float n = floor(t * 1.44269504 + 0.5);
    precise float r = t - n * 0.693359375;
    r = r + n * 2.12194440e-4;
    precise float y = r + r * r * vk_exp_tail(r);
    if (n == 0.0) {
        return vk_abs(x) < 1e-8 || vk_isnan(x) ? x : y;
    }
    if (n > 126.0) {
        return vk_isnan(x) ? x : vk_scale2(1.0 + y, int(n));
    }
    float scale = uintBitsToFloat(uint(127 + int(n)) << 23);
    precise float whole = scale - 1.0;
    return vk_isnan(x) ? x : whole + scale * y;
}

// (log(1 + f) - f + f^2/2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1].
float vk_log_tail(float f) {
    float p = 6.916780770e-02;
    p = p * f - 1.179041713e-01;
    p = p * f + 1.187261194e-01;
    p = p * f - 1.238421872e-01;
    p = p * f + 1.421869993e-01;
    p = p * f - 1.666925997e-01;
    p = p * f + 2.000222504e-01;
    p = p * f - 2.499998659e-01;
    return p * f + 3.333331048e-01;
}

// x = 2^exponent * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for finite x > 0; returns f. Subnormals are normalised on
// integers, which is right on devices that flush them too.
float vk_log_reduce(float x, out float exponent) {
    uint u = floatBitsToUint(x);
    int shift = u < 0x00800000u ? 23 - findMSB(u) : 0;
    u <<= shift;
    int e = (int(u) - 0x3f3504f3) >> 23;
    exponent = float(e - shift);
    return uintBitsToFloat(u - uint(e << 23)) - 1.0;
}

// Whether x is anything but a positive finite number, and its logarithm if so.
bool vk_log_special(float x, out float result) {
    uint u = floatBitsToUint(x);
    if (u - 1u < 0x7f7fffffu) {
        result = 0.0;
        return false;
    }
    result = (u & 0x7fffffffu) == 0u ? -VK_INF : (vk_isnan(x) || u == 0x7f800000u ? x : VK_NAN);
    return true;
}

float vk_log(float x) {
    float special;
    if (vk_log_special(x, special)) {
        return special;
    }
    float e;
    precise float f = vk_log_reduce(x, e);
    precise float y = f * f * (f * vk_log_tail(f) - 0.5) - e * 2.12194440e-4;
    y = (f + y) + e * 0.693359375;
    return y;
}

float vk_log2(float x) {
    float special;
    if (vk_log_special(x, special)) {
        return special;
    }
    float e;
    precise float f = vk_log_reduce(x, e);
    precise float tail = f * f * (f * vk_log_tail(f) - 0.5);
    // log2(e) = 1 + 0.44269504...: the 1 multiplies exactly.
    precise float y = tail * 0.44269504 + f * 0.44269504;
    y = ((y + tail) + f) + e;
    return y;
}

float vk_log10(float x) {
    float special;
    if (vk_log_special(x, special)) {
        return special;
    }
    float e;
    precise float f = vk_log_reduce(x, e);
    precise float tail = f * f * (f * vk_log_tail(f) - 0.5);
    // log10(e) = 0.4375 - 0.00320551809..., log10(2) = 0.30078125 + 0.000248745664...
    precise float y = (f + tail) * -3.2055180967e-3 + e * 2.48745663981e-4;
    y = y + tail * 0.4375;
    y = y + f * 0.4375;
    y = y + e * 0.30078125;
    return y;
}

float vk_log1p(float x) {
    if (x > -0.292 && x < 0.414) {
        precise float y = x * x * (x * vk_log_tail(x) - 0.5);
        return vk_abs(x) < 1e-8 ? x : x + y;
    }
    if (x <= -1.0 || vk_isnan(x) || vk_isinf(x)) {
        return vk_log(1.0 + x);
    }
    // What 1 + x lost is given back to first order.
    precise float u = 1.0 + x;
    precise float lost = u - 1.0 > x ? 1.0 - (u - x) : x - (u - 1.0);
    return vk_log(u) + lost / u;
}

// 1 / (1 + e^-x), whose small values are not lost to an infinite e^-x.
float vk_sigmoid(float x) {
#ifdef HALF_POWERS
    return 1.0 / (1.0 + exp2(x * -1.44269504));
#endif
    // 1 / (1 + e^-x), both terms times 2^-64: then 2^n fits one factor, and what is subnormal is rounded once.
    int shifted;
    float y = vk_exp_parts(x > 40.0 ? -40.0 : -x, 105.0, shifted);
    precise float sum = 5.42101086e-20 + y * intBitsToFloat((shifted << 23) + 0x1f800000);
    return (1.0 / sum) * 5.42101086e-20;
}

float vk_sqrt(float x) {
    return x < 0.0 ? VK_NAN : sqrt(x);
}

// 1 / sqrt(x); infinity of x's sign for a zero.
float vk_rsqrt(float x) {
    uint u = floatBitsToUint(x);
    if (u - 1u < 0x7f7fffffu) {
        return inversesqrt(x);
    }
    if ((u & 0x7fffffffu) == 0u) {
        return vk_copysign(VK_INF, x);
    }
    return u == 0x7f800000u ? 0.0 : (vk_isnan(x) ? x : VK_NAN);
}
