// Sine, cosine and tangent, right for every float: beyond |x| = 200 the argument is reduced with as many bits of 2/pi as its
// exponent asks for (Payne and Hanek 1983), in 64-bit integers. Polynomials are minimax fits of our own.

// 2/pi in binary, 32 bits a word; word 0 holds the 32 bits after the point.
const uint VK_TWO_OVER_PI[6] = uint[6](
    0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u
);

// x = quadrant * pi/2 + result, |result| <= pi/4 and a little, for finite x.
float vk_trig_reduce(float x, out int quadrant) {
    float ax = vk_abs(x);
    if (ax < 200.0) {
        // pi/2 in three parts; the first two have 16 bits, so that their product with up to 8 bits is exact.
        float n = floor(x * 0.636619772 + 0.5);
        precise float r = x - n * 1.57078552;
        r = r - n * 1.08042732e-05;
        r = r - n * 6.0770999e-11;
        quadrant = int(n);
        return r;
    }
    uint u = floatBitsToUint(ax);
    uint mantissa = (u & 0x007fffffu) | 0x00800000u;
    // x = mantissa * 2^e. Of 2/pi the 96 bits from position e - 2 on matter: what is above gives whole turns.
    int position = int(u >> 23) - 150 - 2 + 32;
    int word = position >> 5;
    int bit = position & 31;
    // Word -1 is the whole part of 2/pi: zero.
    uint w0 = word >= 1 ? VK_TWO_OVER_PI[word - 1] : 0u;
    uint w1 = VK_TWO_OVER_PI[word];
    uint w2 = VK_TWO_OVER_PI[word + 1];
    uint w3 = VK_TWO_OVER_PI[word + 2];
    if (bit > 0) {
        w0 = (w0 << bit) | (w1 >> (32 - bit));
        w1 = (w1 << bit) | (w2 >> (32 - bit));
        w2 = (w2 << bit) | (w3 >> (32 - bit));
    }
    uint64_t product = uint64_t(mantissa) * uint64_t(w1) + ((uint64_t(mantissa) * uint64_t(w2)) >> 32);
    product += uint64_t(mantissa * w0) << 32;
    // Two bits of quadrant, 62 bits of fraction.
    int q = int(product >> 62);
    int64_t fraction = int64_t(product << 2);
    q += fraction < int64_t(0) ? 1 : 0;
    // As a float of 2^-64 of a quarter turn: normalised first, because a driver's conversion may not round well.
    uint64_t magnitude = uint64_t(fraction < int64_t(0) ? -fraction : fraction);
    float r = vk_fixed_to_quarter(magnitude);
    r = fraction < int64_t(0) ? -r : r;
    bool negative = vk_signbit(x);
    quadrant = negative ? -q : q;
    return negative ? -r : r;
}

// magnitude * 2^-64 * pi/2 with the full precision of a float.
float vk_fixed_to_quarter(uint64_t magnitude) {
    uint high = uint(magnitude >> 32);
    uint low = uint(magnitude);
    int shift = high != 0u ? 31 - findMSB(high) : (low != 0u ? 63 - findMSB(low) : 63);
    float top = float(uint((magnitude << shift) >> 32)) * uintBitsToFloat(uint(127 - 32 - shift) << 23);
    precise float y = top * 1.57079637 + top * -4.37113883e-08;
    return y;
}

// sin on |x| <= pi/4
float vk_sin_poly(float x) {
    float s = x * x;
    float p = 2.718162023e-06;
    p = p * s - 1.983932016e-04;
    p = p * s + 8.333329111e-03;
    p = p * s - 1.666666716e-01;
    return x + x * s * p;
}

// cos on |x| <= pi/4
float vk_cos_poly(float x) {
    float s = x * x;
    float p = -2.720886130e-07;
    p = p * s + 2.479950308e-05;
    p = p * s - 1.388888340e-03;
    p = p * s + 4.166666791e-02;
    precise float half_s = 0.5 * s;
    precise float w = 1.0 - half_s;
    return w + (((1.0 - w) - half_s) + s * s * p);
}

float vk_sin(float x) {
    if (!vk_isfinite(x)) {
        return VK_NAN;
    }
    int quadrant;
    float r = vk_trig_reduce(x, quadrant);
    float y = (quadrant & 1) == 0 ? vk_sin_poly(r) : vk_cos_poly(r);
    return x == 0.0 ? x : ((quadrant & 2) == 0 ? y : -y);
}

float vk_cos(float x) {
    if (!vk_isfinite(x)) {
        return VK_NAN;
    }
    int quadrant;
    float r = vk_trig_reduce(x, quadrant);
    float y = (quadrant & 1) == 0 ? vk_cos_poly(r) : vk_sin_poly(r);
    return ((quadrant + 1) & 2) == 0 ? y : -y;
}

float vk_tan(float x) {
    if (!vk_isfinite(x)) {
        return VK_NAN;
    }
    int quadrant;
    float r = vk_trig_reduce(x, quadrant);
    float s = vk_sin_poly(r);
    float c = vk_cos_poly(r);
    return x == 0.0 ? x : ((quadrant & 1) == 0 ? s / c : -c / s);
}
