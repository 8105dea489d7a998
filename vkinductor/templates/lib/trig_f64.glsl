// Trigonometric functions and their inverses for doubles, as in trig.glsl and inverse_trig.glsl. Beyond |x| = 100000 the
// argument is multiplied by 192 bits of 2/pi (Payne and Hanek 1983): 2 for the quadrant, 53 for the result, and more than the 61
// that the worst double cancels.

// 2/pi in binary, 32 bits a word; word 0 holds the 32 bits after the point.
const uint VK_TWO_OVER_PI_F64[39] = uint[39](
    0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u,
    0xb7246e3au, 0x424dd2e0u, 0x06492eeau, 0x09d1921cu, 0xfe1deb1cu, 0xb129a73eu, 0xe88235f5u, 0x2ebb4484u,
    0xe99c7026u, 0xb45f7e41u, 0x3991d639u, 0x835339f4u, 0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu,
    0xef2f118bu, 0x5a0a6d1fu, 0x6d367ecfu, 0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du, 0x7527bac7u, 0xebe5f17bu,
    0x3d0739f7u, 0x8a5292eau, 0x6bfb5fb1u, 0x1f8d5d08u, 0x56033046u, 0xfc7b6babu, 0xf0cfbc20u
);

// Word `index` of the above, zero before its start and after its end.
uint vk_two_over_pi_word(int index) {
    return index < 0 || index >= 39 ? 0u : VK_TWO_OVER_PI_F64[index];
}

// x = quadrant * pi/2 + result, |result| <= pi/4 and a little, for finite x.
double vk_trig_reduce_f64(double x, out int quadrant) {
    if (vk_abs_f64(x) < 100000.0lf) {
        // pi/2 in three parts, 33 bits in the first two.
        double n = floor(x * 6.36619772367581343e-01lf + 0.5lf);
        precise double r = x - n * 1.57079632673412561e+00lf;
        r = r - n * 6.07710050630396598e-11lf;
        r = r - n * 2.02226624879595063e-21lf;
        quadrant = int(n);
        return r;
    }
    uvec2 u = unpackDouble2x32(x);
    uint m0 = u.x;
    uint m1 = (u.y & 0x000fffffu) | 0x00100000u;
    // x = m * 2^e. The bits of 2/pi before position e - 2 give whole turns.
    int position = int((u.y >> 20) & 0x7ffu) - 1075 - 2;
    int word = position >> 5;
    int bit = position & 31;
    uint window[6];
    for (int i = 0; i < 6; i++) {
        uint first = vk_two_over_pi_word(word + i);
        uint second = vk_two_over_pi_word(word + i + 1);
        window[i] = bit == 0 ? first : (first << bit) | (second >> (32 - bit));
    }
    // m * window modulo 2^192, lowest word first.
    uint product[6];
    uint64_t carry = uint64_t(0);
    for (int i = 0; i < 6; i++) {
        uint64_t a = uint64_t(m0) * uint64_t(window[5 - i]);
        uint64_t b = i > 0 ? uint64_t(m1) * uint64_t(window[6 - i]) : uint64_t(0);
        carry += uint64_t(uint(a)) + uint64_t(uint(b));
        product[i] = uint(carry);
        carry = (carry >> 32) + (a >> 32) + (b >> 32);
    }
    uint64_t high = uint64_t(product[5]) << 32 | uint64_t(product[4]);
    uint64_t low = uint64_t(product[3]) << 32 | uint64_t(product[2]);
    int q = int(high >> 62);
    high = (high << 2) | (low >> 62);
    low <<= 2;
    bool negative = int64_t(high) < int64_t(0);
    if (negative) {
        q += 1;
        high = ~high + uint64_t(low == uint64_t(0));
        low = ~low + uint64_t(1);
    }
    int shift = 0;
    while (shift < 100 && int64_t(high) >= int64_t(0)) {
        high = (high << 1) | (low >> 63);
        low <<= 1;
        shift += 1;
    }
    double top = double(uint(high >> 32)) * 4294967296.0lf + double(uint(high));
    double r = top * 1.57079632679489656lf * vk_power2_f64(-64 - shift);
    bool minus = vk_signbit_f64(x);
    quadrant = minus ? -q : q;
    return negative != minus ? -r : r;
}

double vk_sin_poly_f64(double x) {
    double s = x * x;
    double p = -7.57875507986869087e-13lf;
    p = p * s + 1.60583677956159240e-10lf;
    p = p * s - 2.50521049209095413e-08lf;
    p = p * s + 2.75573192142269803e-06lf;
    p = p * s - 1.98412698412551395e-04lf;
    p = p * s + 8.33333333333332281e-03lf;
    p = p * s - 1.66666666666666657e-01lf;
    return x + x * s * p;
}

double vk_cos_poly_f64(double x) {
    double s = x * x;
    double p = 4.73812413585995634e-14lf;
    p = p * s - 1.14702936133014246e-11lf;
    p = p * s + 2.08767543693532346e-09lf;
    p = p * s - 2.75573192153907856e-07lf;
    p = p * s + 2.48015873015715332e-05lf;
    p = p * s - 1.38888888888888742e-03lf;
    p = p * s + 4.16666666666666644e-02lf;
    precise double half_s = 0.5lf * s;
    precise double w = 1.0lf - half_s;
    return w + (((1.0lf - w) - half_s) + s * s * p);
}

double vk_sin_f64(double x) {
    if (!vk_isfinite_f64(x)) {
        return VK_NAN_F64;
    }
    int quadrant;
    double r = vk_trig_reduce_f64(x, quadrant);
    double y = (quadrant & 1) == 0 ? vk_sin_poly_f64(r) : vk_cos_poly_f64(r);
    return x == 0.0lf ? x : ((quadrant & 2) == 0 ? y : -y);
}

double vk_cos_f64(double x) {
    if (!vk_isfinite_f64(x)) {
        return VK_NAN_F64;
    }
    int quadrant;
    double r = vk_trig_reduce_f64(x, quadrant);
    double y = (quadrant & 1) == 0 ? vk_cos_poly_f64(r) : vk_sin_poly_f64(r);
    return ((quadrant + 1) & 2) == 0 ? y : -y;
}

double vk_tan_f64(double x) {
    if (!vk_isfinite_f64(x)) {
        return VK_NAN_F64;
    }
    int quadrant;
    double r = vk_trig_reduce_f64(x, quadrant);
    double s = vk_sin_poly_f64(r);
    double c = vk_cos_poly_f64(r);
    return x == 0.0lf ? x : ((quadrant & 1) == 0 ? s / c : -c / s);
}

// (asin(r) - r) / r^3 in s = r^2, r <= 1/2
double vk_asin_tail_f64(double s) {
    double p = 3.26770548711308589e-02lf;
    p = p * s - 2.10775393246532862e-02lf;
    p = p * s + 2.17636615078186588e-02lf;
    p = p * s + 3.68298024896259900e-03lf;
    p = p * s + 1.07865441524105671e-02lf;
    p = p * s + 1.13977734826627985e-02lf;
    p = p * s + 1.39809617418714151e-02lf;
    p = p * s + 1.73516000679047599e-02lf;
    p = p * s + 2.23722156617079462e-02lf;
    p = p * s + 3.03819426835597629e-02lf;
    p = p * s + 4.46428571751223274e-02lf;
    p = p * s + 7.49999999997025962e-02lf;
    p = p * s + 1.66666666666667629e-01lf;
    return p;
}

double vk_asin_f64(double x) {
    double ax = vk_abs_f64(x);
    if (ax > 1.0lf || vk_isnan_f64(x)) {
        return VK_NAN_F64;
    }
    if (ax <= 0.5lf) {
        return ax < 1e-9lf ? x : x + x * (x * x) * vk_asin_tail_f64(x * x);
    }
    double s = 0.5lf * (1.0lf - ax);
    double r = sqrt(s);
    precise double y = 1.57079632679489656lf - (2.0lf * (r + r * s * vk_asin_tail_f64(s)) - 6.12323399573676604e-17lf);
    return vk_copysign_f64(y, x);
}

double vk_acos_f64(double x) {
    double ax = vk_abs_f64(x);
    if (ax > 1.0lf || vk_isnan_f64(x)) {
        return VK_NAN_F64;
    }
    if (ax <= 0.5lf) {
        precise double y = 1.57079632679489656lf - (x + (x * (x * x) * vk_asin_tail_f64(x * x) - 6.12323399573676604e-17lf));
        return y;
    }
    double s = 0.5lf * (1.0lf - ax);
    double r = sqrt(s);
    double y = 2.0lf * (r + r * s * vk_asin_tail_f64(s));
    return x > 0.0lf ? y : 3.14159265358979312lf - (y - 1.22464679914735321e-16lf);
}

// atan of x >= 0 (infinity too)
double vk_atan_positive_f64(double x) {
    double base = 0.0lf;
    double low = 0.0lf;
    double r = x;
    if (x > 2.41421356237309515lf) {
        base = 1.57079632679489656lf;
        low = 6.12323399573676604e-17lf;
        r = vk_isinf_f64(x) ? 0.0lf : -1.0lf / x;
    } else if (x > 0.414213562373095034lf) {
        base = 7.85398163397448279e-01lf;
        low = 3.06161699786838302e-17lf;
        r = (x - 1.0lf) / (x + 1.0lf);
    }
    double s = r * r;
    double p = 1.51954298181997960e-02lf;
    p = p * s - 3.34747540651211817e-02lf;
    p = p * s + 4.50356327852738728e-02lf;
    p = p * s - 5.21840807147035679e-02lf;
    p = p * s + 5.87702241534303824e-02lf;
    p = p * s - 6.66622682545251755e-02lf;
    p = p * s + 7.69228276366322600e-02lf;
    p = p * s - 9.09090814477089004e-02lf;
    p = p * s + 1.11111110881852757e-01lf;
    p = p * s - 1.42857142853881458e-01lf;
    p = p * s + 1.99999999999976696e-01lf;
    p = p * s - 3.33333333333333259e-01lf;
    precise double y = base + (r + (r * s * p + low));
    return y;
}

double vk_atan_f64(double x) {
    if (vk_isnan_f64(x) || vk_abs_f64(x) < 1e-9lf) {
        return x;
    }
    return vk_copysign_f64(vk_atan_positive_f64(vk_abs_f64(x)), x);
}

double vk_atan2_f64(double y, double x) {
    if (vk_isnan_f64(x) || vk_isnan_f64(y)) {
        return VK_NAN_F64;
    }
    double ax = vk_abs_f64(x);
    double ay = vk_abs_f64(y);
    double angle;
    if (ay == 0.0lf) {
        angle = 0.0lf;
    } else if (ax == 0.0lf) {
        angle = 1.57079632679489656lf;
    } else if (vk_isinf_f64(ax) || vk_isinf_f64(ay)) {
        angle = !vk_isinf_f64(ay) ? 0.0lf : (vk_isinf_f64(ax) ? 7.85398163397448279e-01lf : 1.57079632679489656lf);
    } else if (ay > ax) {
        angle = 1.57079632679489656lf - (vk_atan_positive_f64(ax / ay) - 6.12323399573676604e-17lf);
    } else {
        angle = vk_atan_positive_f64(ay / ax);
    }
    if (vk_signbit_f64(x)) {
        angle = 3.14159265358979312lf - (angle - 1.22464679914735321e-16lf);
    }
    return vk_copysign_f64(angle, y);
}
