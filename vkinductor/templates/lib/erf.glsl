// The error function and what is made of it. Polynomials are minimax fits of our own. erfcx is fitted in t = (x-2)/(x+2),
// which maps the half line to [-1, 1) (Shepherd and Laframboise 1981).

// erf(x) / x - 1 on |x| <= 1, in s = x^2
float vk_erf_small(float s) {
    float p = -9.680136827e-06;
    p = p * s + 1.127054857e-04;
    p = p * s - 8.484712453e-04;
    p = p * s + 5.221074913e-03;
    p = p * s - 2.686544508e-02;
    p = p * s + 1.128378287e-01;
    p = p * s - 3.761263788e-01;
    return p * s + 1.283791661e-01;
}

float vk_erf(float x) {
#ifdef HALF_RESULTS
    // A ratio on |x| <= 3.84, good to 2^-20: written out for each element of a matrix's store, its length is what counts.
    float s = min(x * x, 14.7456);
    float p = 2.822485452e-04;
    p = fma(p, s, 7.816434174e-03);
    p = fma(p, s, 6.498396049e-02);
    p = fma(p, s, 2.973501870e-01);
    p = fma(p, s, 1.128378917);
    float q = 1.672065594e-05;
    q = fma(q, s, 1.969192663e-03);
    q = fma(q, s, 2.317488254e-02);
    q = fma(q, s, 1.565741828e-01);
    q = fma(q, s, 5.968461563e-01);
    q = fma(q, s, 1.0);
    float y = x * (p / q);
    // Comparisons, which NaN passes.
    return y > 1.0 ? 1.0 : y < -1.0 ? -1.0 : y;
#else
    // No branch: what loads around several of these would wait at each.
    float ax = vk_abs(x);
    float small = x + x * vk_erf_small(x * x);
    // -log2(erfc(x)) on [1, 4]; from 4 on the result rounds to 1.
    float a = min(ax, 4.0);
    float p = 3.128679600e-05;
    p = p * a - 6.367052556e-04;
    p = p * a + 6.065857131e-03;
    p = p * a - 3.636770695e-02;
    p = p * a + 1.564147472e-01;
    p = p * a + 9.135434031e-01;
    p = p * a + 1.629637122e+00;
    p = p * a - 2.712636779e-04;
    float large = vk_copysign(1.0 - vk_exp2_within(-p), x);
    return ax < 1.0 || vk_isnan(x) ? small : large;
#endif
}

// x times the normal distribution function of x, as torch writes GELU.
float vk_gelu(float x) {
#ifdef HALF_RESULTS
    // By -log2 of the distribution at -|x|, good to 2^-13.5 of the result down to 2^-25: 8 instructions where erf takes 20.
    float a = abs(x);
    float p = 3.331493211e-04;
    p = fma(p, a, -5.949629591e-03);
    p = fma(p, a, 4.864577243e-02);
    p = fma(p, a, 4.635747767e-01);
    p = fma(p, a, 1.149424112);
    p = fma(p, a, 1.000104175);
    float below = exp2(-p);
    // Of positive ones 1 less that, without a choice: 0.2 of 51 us of a linear layer of 2048 with bias and residual (H200).
    return x * abs(clamp(x * 1.7e38, 0.0, 1.0) - below);
#else
    return (x * 0.5) * (vk_erf(x * 0.707106781) + 1.0);
#endif
}

// e^(x^2) erfc(x) for x >= 0
float vk_erfcx_positive(float x) {
    float t = (x - 2.0) / (x + 2.0);
    t = vk_isinf(x) ? 1.0 : t;
    float p = -2.019673775e-05;
    p = p * t + 6.321221008e-05;
    p = p * t + 2.214963606e-04;
    p = p * t - 3.574954753e-04;
    p = p * t - 1.464128145e-03;
    p = p * t + 1.216994948e-03;
    p = p * t + 8.724729531e-03;
    p = p * t - 8.018786088e-03;
    p = p * t - 5.422032252e-02;
    p = p * t + 1.640494168e-01;
    p = p * t - 1.660303771e-01;
    p = p * t - 9.276375920e-02;
    p = p * t + 1.276978374e+00;
    return 0.5 * p / (x + 0.5);
}

// e^(-scale x^2), where the square's rounding error is given back: it would be multiplied by the square.
float vk_exp_minus_square(float x, float scale) {
    float a = min(vk_abs(x), 20.0);
    precise float square = a * a;
    precise float lost = vk_product_error(a, a, square);
    float e = vk_exp(-scale * square);
    return e - e * (scale * lost);
}

float vk_erfc(float x) {
    if (vk_isnan(x)) {
        return x;
    }
    if (vk_abs(x) < 0.5) {
        precise float y = 1.0 - (x + x * vk_erf_small(x * x));
        return y;
    }
    float y = vk_exp_minus_square(x, 1.0) * vk_erfcx_positive(vk_abs(x));
    return x < 0.0 ? 2.0 - y : y;
}

float vk_erfcx(float x) {
    if (vk_isnan(x)) {
        return x;
    }
    float y = vk_erfcx_positive(vk_abs(x));
    if (x >= 0.0) {
        return y;
    }
    if (x < -9.5) {
        return VK_INF;
    }
    precise float square = x * x;
    precise float lost = vk_product_error(x, x, square);
    float e = vk_exp(square);
    // In this order an overflow stays an infinity.
    return vk_isinf(e) ? e : 2.0 * (e + e * lost) - y;
}

// erfinv(x) / x in w = -log(1 - x^2)
float vk_erfinv_ratio(float w) {
    if (w < 5.0) {
        float u = w - 2.5;
        float p = -8.790979500e-09;
        p = p * u + 2.323291248e-08;
        p = p * u + 4.661698370e-07;
        p = p * u - 3.462708037e-06;
        p = p * u - 4.963345873e-06;
        p = p * u + 2.183444449e-04;
        p = p * u - 1.252741902e-03;
        p = p * u - 4.177386872e-03;
        p = p * u + 2.466402799e-01;
        return p * u + 1.501409411e+00;
    }
    float root = sqrt(w);
    if (root < 4.2) {
        float u = root - 3.0;
        float p = -3.074251072e-05;
        p = p * u + 1.615187502e-04;
        p = p * u - 2.752455766e-04;
        p = p * u - 1.214123040e-04;
        p = p * u + 1.473570941e-03;
        p = p * u - 3.566482570e-03;
        p = p * u + 5.688151810e-03;
        p = p * u - 7.642853074e-03;
        p = p * u + 9.445255622e-03;
        p = p * u + 1.001675248e+00;
        return p * u + 2.832976818e+00;
    }
    float u = root - 6.0;
    float p = -1.925655857e-09;
    p = p * u + 3.206863397e-08;
    p = p * u - 2.379046720e-07;
    p = p * u + 1.190468538e-06;
    p = p * u - 5.325506663e-06;
    p = p * u + 2.133113048e-05;
    p = p * u - 4.289384378e-05;
    p = p * u - 4.726105544e-04;
    p = p * u + 1.009605050e+00;
    return p * u + 5.859912872e+00;
}

float vk_erfinv(float x) {
    float ax = vk_abs(x);
    if (ax >= 1.0 || vk_isnan(x)) {
        return ax == 1.0 ? vk_copysign(VK_INF, x) : VK_NAN;
    }
    // Near 1 the factor 1 - |x| is exact, and its logarithm is what counts.
    float w = ax < 0.5 ? -vk_log1p(-x * x) : -vk_log((1.0 - ax) * (1.0 + ax));
    return x * vk_erfinv_ratio(w);
}

// The normal distribution function: erfc(-x / sqrt 2) / 2.
float vk_ndtr(float x) {
    if (vk_isnan(x)) {
        return x;
    }
    float a = vk_abs(x) * 0.707106781;
    if (a < 0.5) {
        float t = x * 0.707106781;
        return 0.5 + 0.5 * (t + t * vk_erf_small(t * t));
    }
    float y = 0.5 * vk_exp_minus_square(x, 0.5) * vk_erfcx_positive(a);
    return x > 0.0 ? 1.0 - y : y;
}

float vk_log_ndtr(float x) {
    if (vk_isnan(x)) {
        return x;
    }
    if (x < -1.0) {
        precise float half_square = 0.5 * x * x;  // x * x alone may overflow
        return vk_log(0.5 * vk_erfcx_positive(-x * 0.707106781)) - half_square;
    }
    return vk_log1p(-vk_ndtr(-x));
}

// The inverse of vk_ndtr: infinite at 0 and 1, NaN outside.
float vk_ndtri(float p) {
    if (!(p >= 0.0 && p <= 1.0)) {
        return VK_NAN;
    }
    if (p == 0.0 || p == 1.0) {
        return p == 0.0 ? -VK_INF : VK_INF;
    }
    precise float x = (p - 0.5) * 2.0;
    float w = vk_abs(x) < 0.5 ? -vk_log1p(-x * x) : -(vk_log(p) + vk_log1p(-p) + 1.38629436);
    return 1.41421356 * x * vk_erfinv_ratio(w);
}
