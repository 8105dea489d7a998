// x^y by log2 and exp2 with the logarithm in two floats: its error is multiplied by y log2(x), up to 128. Products are made
// exact by cutting a float into two halves of 12 bits (Dekker 1971). Special cases are those of IEEE 754 and C99 pow.

// The upper 12 bits of x.
float vk_upper(float x) {
    return uintBitsToFloat(floatBitsToUint(x) & 0xfffff000u);
}

// a * b - product, exactly, where product is the rounded a * b.
float vk_product_error(float a, float b, float product) {
    float a1 = vk_upper(a);
    float b1 = vk_upper(b);
    precise float a2 = a - a1;
    precise float b2 = b - b1;
    precise float e = a1 * b1 - product;
    e = e + a1 * b2;
    e = e + a2 * b1;
    e = e + a2 * b2;
    return e;
}

// log2(x) = result + low for finite x > 0, right to about 2^-31 of its size.
float vk_log2_wide(float x, out float low) {
    float e;
    precise float f = vk_log_reduce(x, e);
    // s = f / (2 + f) to twice the bits; log(1 + f) = 2 (s + s^3/3 + s^5/5 + ...).
    precise float d = 2.0 + f;
    precise float d_low = f - (d - 2.0);
    precise float s = f / d;
    precise float back = s * d;
    precise float s_low = ((f - back) - vk_product_error(s, d, back) - s * d_low) / d;
    precise float q = s * s;
    // (atanh(s) - s) / s^3 on |s| <= 3 - 2 sqrt(2)
    float p = 1.179173142e-01;
    p = p * q + 1.426862329e-01;
    p = p * q + 2.000016868e-01;
    p = p * q + 3.333333135e-01;
    // 2 log2(e) = 2.88539004 + 3.851925e-8
    precise float main = s * 2.88539004;
    precise float main_low = vk_product_error(s, 2.88539004, main);
    main_low = main_low + s * 3.85192e-08;
    main_low = main_low + s_low * 2.88539004;
    main_low = main_low + s * q * p * 2.88539004;
    precise float sum = e + main;
    precise float sum_low = e != 0.0 ? main - (sum - e) : 0.0;
    sum_low = sum_low + main_low;
    precise float high = sum + sum_low;
    low = sum_low - (high - sum);
    return high;
}

float vk_pow(float x, float y) {
    float ax = vk_abs(x);
    float ay = vk_abs(y);
    if (y == 0.0 || x == 1.0) {
        return 1.0;
    }
    if (vk_isnan(x) || vk_isnan(y)) {
        return VK_NAN;
    }
    // Floats from 2^24 on are even.
    bool whole = ay >= 16777216.0 || floor(y) == y;
    bool odd = ay < 16777216.0 && whole && (int(y) & 1) != 0;
    float result;
    if (ax == 1.0) {
        result = 1.0;
    } else if (vk_isinf(y)) {
        return (ax < 1.0) == (y > 0.0) ? 0.0 : VK_INF;
    } else if ((floatBitsToUint(x) & 0x7fffffffu) == 0u || vk_isinf(x)) {
        result = vk_isinf(x) == (y > 0.0) ? VK_INF : 0.0;
    } else if (y == 2.0) {
        return x * x;
    } else {
        float l_low;
        float l = vk_log2_wide(ax, l_low);
        if (ay > 1e10) {
            // Nothing but 1 stays finite and above 0 here: log2 is at least 2^-24.
            result = (l > 0.0) == (y > 0.0) ? VK_INF : 0.0;
        } else {
            precise float t = y * l;
            precise float t_low = vk_product_error(y, l, t) + y * l_low;
            float clamped = clamp(t, -160.0, 130.0);
            t_low = clamped == t ? t_low : 0.0;
            float n = floor(clamped + 0.5);
            precise float r = (clamped - n) + t_low;
            float p = 1.535269403e-04;
            p = p * r + 1.339900307e-03;
            p = p * r + 9.618441574e-03;
            p = p * r + 5.550332367e-02;
            p = p * r + 2.402264774e-01;
            p = p * r + 6.931471825e-01;
            result = vk_scale2(1.0 + r * p, int(n));
        }
    }
    if (vk_signbit(x)) {
        if (!whole && ax != 0.0 && !vk_isinf(x)) {
            return VK_NAN;
        }
        return odd ? -result : result;
    }
    return result;
}
