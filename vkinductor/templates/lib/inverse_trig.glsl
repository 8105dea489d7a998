// Inverse trigonometric and inverse hyperbolic functions. Polynomials are minimax fits of our own; the reductions are the
// usual ones: asin by the half-angle formula, atan by tan(pi/8), the hyperbolic ones by log1p.

// (asin(r) - r) / r^3 in s = r^2, r <= 1/2
float vk_asin_tail(float s) {
    float p = 3.756440803e-02;
    p = p * s + 1.440334134e-02;
    p = p * s + 3.181737289e-02;
    p = p * s + 4.451575130e-02;
    p = p * s + 7.500510663e-02;
    return p * s + 1.666665971e-01;
}

float vk_asin(float x) {
    float ax = vk_abs(x);
    if (ax > 1.0 || vk_isnan(x)) {
        return VK_NAN;
    }
    if (ax <= 0.5) {
        return ax < 1e-4 ? x : x + x * (x * x) * vk_asin_tail(x * x);
    }
    float s = 0.5 * (1.0 - ax);
    float r = sqrt(s);
    precise float y = 1.57079637 - (2.0 * (r + r * s * vk_asin_tail(s)) - -4.37113883e-08);
    return vk_copysign(y, x);
}

float vk_acos(float x) {
    float ax = vk_abs(x);
    if (ax > 1.0 || vk_isnan(x)) {
        return VK_NAN;
    }
    if (ax <= 0.5) {
        precise float y = 1.57079637 - (x + (x * (x * x) * vk_asin_tail(x * x) - -4.37113883e-08));
        return y;
    }
    float s = 0.5 * (1.0 - ax);
    float r = sqrt(s);
    float y = 2.0 * (r + r * s * vk_asin_tail(s));
    return x > 0.0 ? y : 3.14159274 - (y - -8.74227766e-08);
}

// atan of x >= 0 (infinity too).
float vk_atan_positive(float x) {
    float base = 0.0;
    float low = 0.0;
    float r = x;
    if (x > 2.41421366) {
        base = 1.57079637;
        low = -4.37113883e-08;
        r = vk_isinf(x) ? 0.0 : -1.0 / x;
    } else if (x > 0.414213568) {
        base = 0.785398185;
        low = -2.18556941e-08;
        r = (x - 1.0) / (x + 1.0);
    }
    float s = r * r;
    // (atan(r) - r) / r^3 on r <= sqrt(2) - 1
    float p = -6.081241369e-02;
    p = p * s + 1.059519425e-01;
    p = p * s - 1.424375027e-01;
    p = p * s + 1.999848485e-01;
    p = p * s - 3.333331645e-01;
    precise float y = base + (r + (r * s * p + low));
    return y;
}

float vk_atan(float x) {
    if (vk_isnan(x) || vk_abs(x) < 1e-4) {
        return x;
    }
    return vk_copysign(vk_atan_positive(vk_abs(x)), x);
}

// The angle of the point (x, y), signed zeros and infinities as in IEEE 754.
float vk_atan2(float y, float x) {
    if (vk_isnan(x) || vk_isnan(y)) {
        return VK_NAN;
    }
    float ax = vk_abs(x);
    float ay = vk_abs(y);
    float angle;
    if (ay == 0.0) {
        angle = 0.0;
    } else if (ax == 0.0) {
        angle = 1.57079637;
    } else if (vk_isinf(ax) || vk_isinf(ay)) {
        angle = !vk_isinf(ay) ? 0.0 : (vk_isinf(ax) ? 0.785398185 : 1.57079637);
    } else if (ay > ax) {
        // The smaller over the larger: neither overflows, nor loses more than a subnormal's bits.
        angle = 1.57079637 - (vk_atan_positive(vk_div(ax, ay)) - -4.37113883e-08);
    } else {
        angle = vk_atan_positive(vk_div(ay, ax));
    }
    if (vk_signbit(x)) {
        angle = 3.14159274 - (angle - -8.74227766e-08);
    }
    return vk_copysign(angle, y);
}

float vk_asinh(float x) {
    float ax = vk_abs(x);
    float y;
    if (ax > 1e9) {
        y = vk_log(ax) + 0.693147181;
    } else {
        y = vk_log1p(ax + ax * ax / (1.0 + sqrt(ax * ax + 1.0)));
    }
    return vk_isnan(x) || ax < 1e-4 ? x : vk_copysign(y, x);
}

float vk_acosh(float x) {
    if (!(x >= 1.0)) {
        return VK_NAN;
    }
    if (x > 1e9) {
        return vk_log(x) + 0.693147181;
    }
    float t = x - 1.0;
    return vk_log1p(t + sqrt(2.0 * t + t * t));
}

float vk_atanh(float x) {
    float ax = vk_abs(x);
    if (ax >= 1.0 || vk_isnan(x)) {
        return ax == 1.0 ? vk_copysign(VK_INF, x) : VK_NAN;
    }
    return ax < 1e-4 ? x : vk_copysign(0.5 * vk_log1p(2.0 * ax / (1.0 - ax)), x);
}

// sqrt(x^2 + y^2) without overflow or underflow on the way; infinity if either is infinite, even beside NaN.
float vk_hypot(float x, float y) {
    float a = vk_abs(x);
    float b = vk_abs(y);
    if (vk_isinf(a) || vk_isinf(b)) {
        return VK_INF;
    }
    if (vk_isnan(a) || vk_isnan(b)) {
        return VK_NAN;
    }
    float large = max(a, b);
    float small = min(a, b);
    if (large == 0.0) {
        return 0.0;
    }
    // Scaled by a power of two, which is exact.
    int exponent = vk_frexp_exponent(large);
    float u = vk_ldexp(large, -exponent);
    float v = vk_ldexp(small, -exponent);
    return vk_ldexp(sqrt(u * u + v * v), exponent);
}
