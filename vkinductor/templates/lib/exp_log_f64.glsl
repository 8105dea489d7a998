// Exponentials, logarithms, powers and hyperbolic functions for doubles, which GLSL has none of. Polynomials are minimax fits
// of our own; the logarithm's form, f - (f^2/2 - s (f^2/2 + R)) with s = f / (2 + f), is that of FreeBSD's msun.

// y * 2^n for |n| <= 2040, in two steps.
double vk_scale2_f64(double y, int n) {
    int half_n = n >> 1;
    precise double first = y * vk_power2_f64(half_n);
    return first * vk_power2_f64(n - half_n);
}

// (e^r - 1 - r) / r^2 on |r| <= ln(2)/2
double vk_exp_tail_f64(double r) {
    double p = 2.09244200134692309e-09lf;
    p = p * r + 2.51090454179805751e-08lf;
    p = p * r + 2.75572428527820420e-07lf;
    p = p * r + 2.75572441804818304e-06lf;
    p = p * r + 2.48015873604168094e-05lf;
    p = p * r + 1.98412698861598661e-04lf;
    p = p * r + 1.38888888888669322e-03lf;
    p = p * r + 8.33333333332161516e-03lf;
    p = p * r + 4.16666666666666990e-02lf;
    p = p * r + 1.66666666666666768e-01lf;
    p = p * r + 5.00000000000000000e-01lf;
    return p;
}

double vk_exp_f64(double x) {
    if (vk_isnan_f64(x)) {
        return x;
    }
    double t = clamp(x, -750.0lf, 712.0lf);
    double n = floor(t * 1.44269504088896339lf + 0.5lf);
    precise double r = t - n * 6.93147180369123816e-01lf;
    r = r - n * 1.90821492927058770e-10lf;
    precise double y = 1.0lf + (r + r * r * vk_exp_tail_f64(r));
    return vk_scale2_f64(y, int(n));
}

double vk_exp2_f64(double x) {
    if (vk_isnan_f64(x)) {
        return x;
    }
    double t = clamp(x, -1080.0lf, 1030.0lf);
    double n = floor(t + 0.5lf);
    double r = (t - n) * 6.93147180559945286e-01lf;
    precise double y = 1.0lf + (r + r * r * vk_exp_tail_f64(r));
    return vk_scale2_f64(y, int(n));
}

double vk_expm1_f64(double x) {
    if (vk_isnan_f64(x) || vk_abs_f64(x) < 1e-17lf) {
        return x;
    }
    double t = clamp(x, -50.0lf, 712.0lf);
    double n = floor(t * 1.44269504088896339lf + 0.5lf);
    precise double r = t - n * 6.93147180369123816e-01lf;
    r = r - n * 1.90821492927058770e-10lf;
    precise double y = r + r * r * vk_exp_tail_f64(r);
    if (n == 0.0lf) {
        return y;
    }
    if (n > 1020.0lf) {
        return vk_scale2_f64(1.0lf + y, int(n));
    }
    double scale = vk_power2_f64(int(n));
    precise double whole = scale - 1.0lf;
    return whole + scale * y;
}

// x = 2^exponent * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for finite x > 0; returns f.
double vk_log_reduce_f64(double x, out double exponent) {
    uvec2 u = unpackDouble2x32(x);
    int shift = 0;
    if (u.y < 0x00100000u) {
        shift = vk_subnormal_shift_f64(u);
        uint64_t m = (uint64_t(u.y) << 32 | uint64_t(u.x)) << shift;
        u = uvec2(uint(m), uint(m >> 32));
    }
    int e = (int(u.y) - 0x3fe6a09e) >> 20;
    exponent = double(e - shift);
    return packDouble2x32(uvec2(u.x, u.y - uint(e << 20))) - 1.0lf;
}

// (atanh(s) - s) / s^3 in q = s^2, |s| <= 3 - 2 sqrt(2)
double vk_atanh_tail_f64(double q) {
    double p = 6.62624537794493373e-02lf;
    p = p * q + 6.62499762688708443e-02lf;
    p = p * q + 7.69354798545906909e-02lf;
    p = p * q + 9.09088777603777876e-02lf;
    p = p * q + 1.11111113240695253e-01lf;
    p = p * q + 1.42857142845387336e-01lf;
    p = p * q + 2.00000000000031347e-01lf;
    p = p * q + 3.33333333333333315e-01lf;
    return p;
}

bool vk_log_special_f64(double x, out double result) {
    result = x;
    if (x > 0.0lf && vk_isfinite_f64(x)) {
        return false;
    }
    if (!vk_isnan_f64(x) && x <= 0.0lf) {
        result = x == 0.0lf ? -VK_INF_F64 : VK_NAN_F64;
    }
    return true;
}

double vk_log_f64(double x) {
    double special;
    if (vk_log_special_f64(x, special)) {
        return special;
    }
    double e;
    precise double f = vk_log_reduce_f64(x, e);
    double s = f / (2.0lf + f);
    double q = s * s;
    precise double half_square = 0.5lf * f * f;
    precise double y = s * (half_square + 2.0lf * q * vk_atanh_tail_f64(q)) + e * 1.90821492927058770e-10lf;
    y = e * 6.93147180369123816e-01lf - ((half_square - y) - f);
    return y;
}

// log(1 + f) = result + low, result having 20 bits, so that its products with 26-bit constants are exact.
double vk_log1p_parts_f64(double f, out double low) {
    double s = f / (2.0lf + f);
    double q = s * s;
    precise double half_square = 0.5lf * f * f;
    precise double whole = f - half_square;
    uvec2 u = unpackDouble2x32(whole);
    precise double high = packDouble2x32(uvec2(0u, u.y));
    low = ((f - high) - half_square) + s * (half_square + 2.0lf * q * vk_atanh_tail_f64(q));
    return high;
}

double vk_log2_f64(double x) {
    double special;
    if (vk_log_special_f64(x, special)) {
        return special;
    }
    double e;
    double f = vk_log_reduce_f64(x, e);
    double low;
    double high = vk_log1p_parts_f64(f, low);
    precise double y = (low + high) * 1.92596299112661747e-08lf + low * 1.44269502162933350e+00lf;
    precise double main = high * 1.44269502162933350e+00lf;
    precise double sum = e + main;
    y = y + (e != 0.0lf ? main - (sum - e) : 0.0lf);
    return sum + y;
}

double vk_log10_f64(double x) {
    double special;
    if (vk_log_special_f64(x, special)) {
        return special;
    }
    double e;
    double f = vk_log_reduce_f64(x, e);
    double low;
    double high = vk_log1p_parts_f64(f, low);
    precise double y = (low + high) * 4.79811114161597281e-09lf + low * 4.34294477105140686e-01lf;
    y = y + e * 1.14511008980218384e-10lf;
    precise double main = high * 4.34294477105140686e-01lf;
    precise double whole = e * 3.01029995549470186e-01lf;
    precise double sum = whole + main;
    y = y + (e != 0.0lf ? main - (sum - whole) : 0.0lf);
    return sum + y;
}

double vk_log1p_f64(double x) {
    if (vk_abs_f64(x) < 1e-17lf) {
        return x;
    }
    if (x > -0.292lf && x < 0.414lf) {
        double s = x / (2.0lf + x);
        double q = s * s;
        precise double half_square = 0.5lf * x * x;
        precise double y = x - (half_square - s * (half_square + 2.0lf * q * vk_atanh_tail_f64(q)));
        return y;
    }
    precise double u = 1.0lf + x;
    if (x <= -1.0lf || vk_isnan_f64(x) || vk_isinf_f64(x)) {
        return vk_log_f64(u);
    }
    precise double lost = u - 1.0lf > x ? 1.0lf - (u - x) : x - (u - 1.0lf);
    return vk_log_f64(u) + lost / u;
}

double vk_sigmoid_f64(double x) {
    double e = vk_exp_f64(-vk_abs_f64(x));
    return (x < 0.0lf ? e : 1.0lf) / (1.0lf + e);
}

// log2(x) = result + low for finite x > 0.
double vk_log2_wide_f64(double x, out double low) {
    double e;
    precise double f = vk_log_reduce_f64(x, e);
    precise double d = 2.0lf + f;
    precise double d_low = f - (d - 2.0lf);
    precise double s = f / d;
    precise double back = s * d;
    precise double s_low = ((f - back) - vk_product_error_f64(s, d, back) - s * d_low) / d;
    double q = s * s;
    precise double main = s * 2.88539008177792677lf;
    precise double main_low = vk_product_error_f64(s, 2.88539008177792677lf, main);
    main_low = main_low + s * 4.07105474818620662e-17lf;
    main_low = main_low + s_low * 2.88539008177792677lf;
    main_low = main_low + s * q * vk_atanh_tail_f64(q) * 2.88539008177792677lf;
    precise double sum = e + main;
    precise double sum_low = e != 0.0lf ? main - (sum - e) : 0.0lf;
    sum_low = sum_low + main_low;
    precise double high = sum + sum_low;
    low = sum_low - (high - sum);
    return high;
}

double vk_pow_f64(double x, double y) {
    double ax = vk_abs_f64(x);
    double ay = vk_abs_f64(y);
    if (y == 0.0lf || x == 1.0lf) {
        return 1.0lf;
    }
    if (vk_isnan_f64(x) || vk_isnan_f64(y)) {
        return VK_NAN_F64;
    }
    // Doubles from 2^53 on are even.
    bool whole = ay >= 9007199254740992.0lf || floor(y) == y;
    bool odd = ay < 9007199254740992.0lf && whole && (uint(int64_t(y)) & 1u) != 0u;
    double result;
    if (ax == 1.0lf) {
        result = 1.0lf;
    } else if (vk_isinf_f64(y)) {
        return (ax < 1.0lf) == (y > 0.0lf) ? 0.0lf : VK_INF_F64;
    } else if (ax == 0.0lf || vk_isinf_f64(x)) {
        result = vk_isinf_f64(x) == (y > 0.0lf) ? VK_INF_F64 : 0.0lf;
    } else if (y == 2.0lf) {
        return x * x;
    } else {
        double l_low;
        double l = vk_log2_wide_f64(ax, l_low);
        if (ay > 1e20lf) {
            result = (l > 0.0lf) == (y > 0.0lf) ? VK_INF_F64 : 0.0lf;
        } else {
            precise double t = y * l;
            precise double t_low = vk_product_error_f64(y, l, t) + y * l_low;
            double clamped = clamp(t, -1100.0lf, 1030.0lf);
            t_low = clamped == t ? t_low : 0.0lf;
            double n = floor(clamped + 0.5lf);
            precise double r = ((clamped - n) + t_low) * 6.93147180559945286e-01lf;
            precise double power = 1.0lf + (r + r * r * vk_exp_tail_f64(r));
            result = vk_scale2_f64(power, int(n));
        }
    }
    if (vk_signbit_f64(x)) {
        if (!whole && ax != 0.0lf && !vk_isinf_f64(x)) {
            return VK_NAN_F64;
        }
        return odd ? -result : result;
    }
    return result;
}

double vk_tanh_f64(double x) {
    double ax = vk_abs_f64(x);
    if (vk_isnan_f64(x) || ax < 1e-17lf) {
        return x;
    }
    double t = vk_expm1_f64(-2.0lf * ax);
    return vk_copysign_f64(-t / (t + 2.0lf), x);
}

double vk_sinh_f64(double x) {
    double ax = vk_abs_f64(x);
    if (vk_isnan_f64(x) || ax < 1e-17lf) {
        return x;
    }
    double y;
    if (ax < 22.0lf) {
        double t = vk_expm1_f64(ax);
        y = 0.5lf * (t + t / (t + 1.0lf));
    } else {
        double e = vk_exp_f64(0.5lf * ax);
        y = 0.5lf * e * e;
    }
    return vk_copysign_f64(y, x);
}

double vk_cosh_f64(double x) {
    double ax = vk_abs_f64(x);
    if (vk_isnan_f64(x)) {
        return x;
    }
    if (ax < 22.0lf) {
        double e = vk_exp_f64(ax);
        return 0.5lf * e + 0.5lf / e;
    }
    double e = vk_exp_f64(0.5lf * ax);
    return 0.5lf * e * e;
}

double vk_asinh_f64(double x) {
    double ax = vk_abs_f64(x);
    if (vk_isnan_f64(x) || ax < 1e-9lf) {
        return x;
    }
    double y = ax > 1e9lf ? vk_log_f64(ax) + 6.93147180559945286e-01lf
        : vk_log1p_f64(ax + ax * ax / (1.0lf + sqrt(ax * ax + 1.0lf)));
    return vk_copysign_f64(y, x);
}

double vk_acosh_f64(double x) {
    if (!(x >= 1.0lf)) {
        return VK_NAN_F64;
    }
    if (x > 1e9lf) {
        return vk_log_f64(x) + 6.93147180559945286e-01lf;
    }
    double t = x - 1.0lf;
    return vk_log1p_f64(t + sqrt(2.0lf * t + t * t));
}

double vk_atanh_f64(double x) {
    double ax = vk_abs_f64(x);
    if (ax >= 1.0lf || vk_isnan_f64(x)) {
        return ax == 1.0lf ? vk_copysign_f64(VK_INF_F64, x) : VK_NAN_F64;
    }
    return ax < 1e-9lf ? x : vk_copysign_f64(0.5lf * vk_log1p_f64(2.0lf * ax / (1.0lf - ax)), x);
}
