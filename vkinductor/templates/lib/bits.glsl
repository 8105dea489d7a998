// Questions about, and changes to, the representation of a float: tests on bits, because a driver may assume that there is
// no NaN and fold `x != x`.

#define VK_INF uintBitsToFloat(0x7f800000u)
#define VK_NAN uintBitsToFloat(0x7fc00000u)

bool vk_isnan(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bool vk_isinf(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u;
}

bool vk_isfinite(float x) {
    return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u;
}

bool vk_signbit(float x) {
    return (floatBitsToUint(x) & 0x80000000u) != 0u;
}

float vk_abs(float x) {
    return uintBitsToFloat(floatBitsToUint(x) & 0x7fffffffu);
}

// Not by masking and joining bits: Mesa 25.0's lavapipe makes `x & ~y` of that behind some expressions for x.
float vk_copysign(float x, float y) {
    float magnitude = vk_abs(x);
    return vk_signbit(y) ? -magnitude : magnitude;
}

// -1, 0 or 1; NaN gives 0, as torch.sign does.
float vk_sign(float x) {
    return vk_isnan(x) ? 0.0 : float(int(x > 0.0) - int(x < 0.0));
}

// NaN if either is NaN (torch.maximum), unlike GLSL's max.
float vk_max(float a, float b) {
    return a >= b || vk_isnan(a) ? a : b;
}

float vk_min(float a, float b) {
    return a <= b || vk_isnan(a) ? a : b;
}

// The other one if one is NaN (torch.fmax).
float vk_fmax(float a, float b) {
    return vk_isnan(a) ? b : (vk_isnan(b) ? a : (a < b ? b : a));
}

float vk_fmin(float a, float b) {
    return vk_isnan(a) ? b : (vk_isnan(b) ? a : (b < a ? b : a));
}

// The next float from x towards y (IEEE 754 nextUp and nextDown).
float vk_nextafter(float x, float y) {
    if (vk_isnan(x) || vk_isnan(y)) {
        return VK_NAN;
    }
    uint ux = floatBitsToUint(x);
    uint uy = floatBitsToUint(y);
    if (ux == uy || ((ux | uy) & 0x7fffffffu) == 0u) {
        return y;
    }
    if ((ux & 0x7fffffffu) == 0u) {
        return uintBitsToFloat((uy & 0x80000000u) | 1u);
    }
    // Compared as sign and magnitude, so that subnormals count on devices that flush them.
    int ix = int(ux) < 0 ? int(0x80000000u - ux) : int(ux);
    int iy = int(uy) < 0 ? int(0x80000000u - uy) : int(uy);
    bool away = (ix < iy) == (int(ux) >= 0);
    return uintBitsToFloat(away ? ux + 1u : ux - 1u);
}

// x * 2^n for n of any size, rounded once where the result is subnormal.
float vk_ldexp(float x, int n) {
    n = clamp(n, -300, 300);
    int first = clamp(n, -100, 100);
    int second = clamp(n - first, -100, 100);
    int third = n - first - second;
    precise float y = x * uintBitsToFloat(uint(127 + (n < -100 ? third : first)) << 23);
    y = y * uintBitsToFloat(uint(127 + second) << 23);
    y = y * uintBitsToFloat(uint(127 + (n < -100 ? first : third)) << 23);
    return y;
}

// x = mantissa * 2^exponent with the mantissa in [0.5, 1); zero, infinity and NaN are their own mantissa, exponent 0.
float vk_frexp_mantissa(float x) {
    uint u = floatBitsToUint(x);
    uint magnitude = u & 0x7fffffffu;
    if (magnitude == 0u || magnitude >= 0x7f800000u) {
        return x;
    }
    if (magnitude < 0x00800000u) {
        magnitude <<= 23 - findMSB(magnitude);
    }
    return uintBitsToFloat((u & 0x80000000u) | 0x3f000000u | (magnitude & 0x007fffffu));
}

int vk_frexp_exponent(float x) {
    uint magnitude = floatBitsToUint(x) & 0x7fffffffu;
    if (magnitude == 0u || magnitude >= 0x7f800000u) {
        return 0;
    }
    if (magnitude < 0x00800000u) {
        return findMSB(magnitude) - 148;
    }
    return int(magnitude >> 23) - 126;
}

float vk_trunc(float x) {
    return trunc(x);
}

float vk_floor(float x) {
    return floor(x);
}

float vk_ceil(float x) {
    return ceil(x);
}

// To nearest, ties to even (torch.round); GLSL's round leaves ties to the driver.
float vk_round(float x) {
    return roundEven(x);
}
