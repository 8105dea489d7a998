// Error and gamma functions for doubles, as in erf.glsl and gamma.glsl.

// erf(x) / x - 1 on |x| <= 1, in s = x^2
double vk_erf_small_f64(double s) {
    double p = -4.23312952867956340e-12lf;
    p = p * s + 8.71046533665036373e-11lf;
    p = p * s - 1.21649686171654986e-09lf;
    p = p * s + 1.47924696445201131e-08lf;
    p = p * s - 1.63646495514651585e-07lf;
    p = p * s + 1.64620459805576310e-06lf;
    p = p * s - 1.49256475944978533e-05lf;
    p = p * s + 1.20553329038126006e-04lf;
    p = p * s - 8.54832702195602477e-04lf;
    p = p * s + 5.22397762542361078e-03lf;
    p = p * s - 2.68661706451298679e-02lf;
    p = p * s + 1.12837916709551206e-01lf;
    p = p * s - 3.76126389031837538e-01lf;
    p = p * s + 1.28379167095512586e-01lf;
    return p;
}

// e^(x^2) erfc(x) for x >= 0, in t = (x-2)/(x+2)
double vk_erfcx_positive_f64(double x) {
    double t = vk_isinf_f64(x) ? 1.0lf : (x - 2.0lf) / (x + 2.0lf);
    double p = 4.68429284626570702e-09lf;
    p = p * t + 2.34275715183221468e-10lf;
    p = p * t - 4.47444405809058706e-08lf;
    p = p * t - 2.60941795378546018e-08lf;
    p = p * t + 1.78758451999037973e-07lf;
    p = p * t + 2.35940638330712254e-07lf;
    p = p * t - 2.75154541696662345e-07lf;
    p = p * t - 9.48447749292499098e-07lf;
    p = p * t - 6.89975487143260458e-07lf;
    p = p * t + 1.59285965116660152e-06lf;
    p = p * t + 5.22236664788727717e-06lf;
    p = p * t + 3.66254534296510725e-06lf;
    p = p * t - 1.34925557854173418e-05lf;
    p = p * t - 3.64052168219355699e-05lf;
    p = p * t - 1.50993818646721677e-06lf;
    p = p * t + 1.51034512569569719e-04lf;
    p = p * t + 2.06367236937411068e-04lf;
    p = p * t - 4.54340038154830875e-04lf;
    p = p * t - 1.45681395145334357e-03lf;
    p = p * t + 1.27133888206249564e-03lf;
    p = p * t + 8.72265387613897943e-03lf;
    p = p * t - 8.03401507743788275e-03lf;
    p = p * t - 5.42200009920579262e-02lf;
    p = p * t + 1.64051280033304381e-01lf;
    p = p * t - 1.66030397615288983e-01lf;
    p = p * t - 9.27638265857448768e-02lf;
    p = p * t + 1.27697838155252863e+00lf;
    return 0.5lf * p / (x + 0.5lf);
}

// e^(-scale x^2), where the square's rounding error is given back.
double vk_exp_minus_square_f64(double x, double scale) {
    double a = min(vk_abs_f64(x), 60.0lf);
    precise double square = a * a;
    precise double lost = vk_product_error_f64(a, a, square);
    double e = vk_exp_f64(-scale * square);
    return e - e * (scale * lost);
}

double vk_erf_f64(double x) {
    double ax = vk_abs_f64(x);
    if (ax < 1.0lf) {
        return x + x * vk_erf_small_f64(x * x);
    }
    if (vk_isnan_f64(x)) {
        return x;
    }
    return vk_copysign_f64(1.0lf - vk_exp_f64(-min(ax * ax, 100.0lf)) * vk_erfcx_positive_f64(ax), x);
}

double vk_erfc_f64(double x) {
    if (vk_isnan_f64(x)) {
        return x;
    }
    if (vk_abs_f64(x) < 0.5lf) {
        precise double y = 1.0lf - (x + x * vk_erf_small_f64(x * x));
        return y;
    }
    double y = vk_exp_minus_square_f64(x, 1.0lf) * vk_erfcx_positive_f64(vk_abs_f64(x));
    return x < 0.0lf ? 2.0lf - y : y;
}

double vk_erfcx_f64(double x) {
    if (vk_isnan_f64(x)) {
        return x;
    }
    double y = vk_erfcx_positive_f64(vk_abs_f64(x));
    if (x >= 0.0lf) {
        return y;
    }
    if (x < -27.0lf) {
        return VK_INF_F64;
    }
    precise double square = x * x;
    precise double lost = vk_product_error_f64(x, x, square);
    double e = vk_exp_f64(square);
    return vk_isinf_f64(e) ? e : 2.0lf * (e + e * lost) - y;
}

// y >= 0 with erfc(y) = q, from a start good to seven digits: Halley's step triples them.
double vk_erfc_step_f64(double y, double q) {
    // Beyond 26 the exponential alone would overflow.
    double e = y < 26.0lf ? q * vk_exp_f64(y * y) : vk_exp_f64(y * y + vk_log_f64(q));
    double f = vk_erfcx_positive_f64(y) - e;
    double u = -f * 8.86226925452758052e-01lf;
    return y - u / (1.0lf + y * u);
}

double vk_erfinv_f64(double x) {
    double ax = vk_abs_f64(x);
    if (ax >= 1.0lf || vk_isnan_f64(x)) {
        return ax == 1.0lf ? vk_copysign_f64(VK_INF_F64, x) : VK_NAN_F64;
    }
    double w = ax < 0.5lf ? -vk_log1p_f64(-x * x) : -vk_log_f64((1.0lf - ax) * (1.0lf + ax));
    double y = ax * double(vk_erfinv_ratio(float(w)));
    if (ax < 0.5lf) {
        double u = (y + y * vk_erf_small_f64(y * y) - ax) * 8.86226925452758052e-01lf * vk_exp_f64(y * y);
        y = y - u / (1.0lf + y * u);
    } else {
        y = vk_erfc_step_f64(y, 1.0lf - ax);
    }
    return vk_copysign_f64(y, x);
}

double vk_ndtr_f64(double x) {
    if (vk_isnan_f64(x)) {
        return x;
    }
    double a = vk_abs_f64(x) * 7.07106781186547573e-01lf;
    if (a < 0.5lf) {
        double t = x * 7.07106781186547573e-01lf;
        return 0.5lf + 0.5lf * (t + t * vk_erf_small_f64(t * t));
    }
    double y = 0.5lf * vk_exp_minus_square_f64(x, 0.5lf) * vk_erfcx_positive_f64(a);
    return x > 0.0lf ? 1.0lf - y : y;
}

double vk_log_ndtr_f64(double x) {
    if (vk_isnan_f64(x)) {
        return x;
    }
    if (x < -1.0lf) {
        return vk_log_f64(0.5lf * vk_erfcx_positive_f64(-x * 7.07106781186547573e-01lf)) - 0.5lf * x * x;
    }
    return vk_log1p_f64(-vk_ndtr_f64(-x));
}

double vk_ndtri_f64(double p) {
    if (!(p >= 0.0lf && p <= 1.0lf)) {
        return VK_NAN_F64;
    }
    if (p == 0.0lf || p == 1.0lf) {
        return p == 0.0lf ? -VK_INF_F64 : VK_INF_F64;
    }
    if (p > 0.25lf && p < 0.75lf) {
        return 1.41421356237309515lf * vk_erfinv_f64(2.0lf * (p - 0.5lf));
    }
    double q = 2.0lf * min(p, 1.0lf - p);
    double w = -vk_log_f64(q);
    double y;
    if (w < 100.0lf) {
        double x = 1.0lf - q;
        y = x * double(vk_erfinv_ratio(float(w - vk_log1p_f64(x))));
    } else {
        y = sqrt(w - 0.5lf * vk_log_f64(3.14159265358979312lf * w));
        y = vk_erfc_step_f64(y, q);
    }
    y = vk_erfc_step_f64(y, q);
    return p < 0.5lf ? -1.41421356237309515lf * y : 1.41421356237309515lf * y;
}

// log(gamma(2 + u)) / u on |u| <= 1/2
double vk_lgamma_two_f64(double u) {
    double p = -3.34660765459528572e-08lf;
    p = p * u + 6.46679002830081354e-08lf;
    p = p * u - 9.23237219546534798e-08lf;
    p = p * u + 2.02007099938991376e-07lf;
    p = p * u - 4.52547853949296141e-07lf;
    p = p * u + 9.58386271438216168e-07lf;
    p = p * u - 2.03839858593499869e-06lf;
    p = p * u + 4.37423291462997922e-06lf;
    p = p * u - 9.43961671968613183e-06lf;
    p = p * u + 2.05072904603421512e-05lf;
    p = p * u - 4.49262238613957053e-05lf;
    p = p * u + 9.94575068391215553e-05lf;
    p = p * u - 2.23154759255300651e-04lf;
    p = p * u + 5.09669525015446078e-04lf;
    p = p * u - 1.19275391167418380e-03lf;
    p = p * u + 2.89051033073467901e-03lf;
    p = p * u - 7.38555102867452604e-03lf;
    p = p * u + 2.05808084277846262e-02lf;
    p = p * u - 6.73523010531980881e-02lf;
    p = p * u + 3.22467033424113203e-01lf;
    p = p * u + 4.22784335098467134e-01lf;
    return p;
}

// log(gamma(x)) for x >= 0.5
double vk_lgamma_positive_f64(double x) {
    if (x < 1.5lf) {
        double u = x - 1.0lf;
        return u * vk_lgamma_two_f64(u) - vk_log1p_f64(u);
    }
    if (x < 10.0lf) {
        double product = 1.0lf;
        while (x >= 2.5lf) {
            x -= 1.0lf;
            product *= x;
        }
        double u = x - 2.0lf;
        double y = u * vk_lgamma_two_f64(u);
        return product == 1.0lf ? y : vk_log_f64(product) + y;
    }
    double r = 1.0lf / x;
    double q = r * r;
    double p = 6.41025641025641025e-03lf;
    p = p * q - 1.91752691752691753e-03lf;
    p = p * q + 8.41750841750841751e-04lf;
    p = p * q - 5.95238095238095238e-04lf;
    p = p * q + 7.93650793650793651e-04lf;
    p = p * q - 2.77777777777777778e-03lf;
    p = p * q + 8.33333333333333333e-02lf;
    precise double y = (x - 0.5lf) * (vk_log_f64(x) - 1.0lf) + (4.18938533204672742e-01lf + r * p);
    return y;
}

double vk_lgamma_f64(double x) {
    if (vk_isnan_f64(x)) {
        return x;
    }
    double ax = vk_abs_f64(x);
    if (x >= 0.5lf || vk_isinf_f64(x)) {
        return vk_isinf_f64(x) ? ax : vk_lgamma_positive_f64(x);
    }
    if (ax < 1e-10lf) {
        return -vk_log_f64(ax) - 5.77215664901532861e-01lf * x;
    }
    if (x > 0.0lf) {
        return vk_lgamma_positive_f64(1.0lf + x) - vk_log_f64(x);
    }
    precise double rest = ax - roundEven(ax);
    if (rest == 0.0lf) {
        return VK_INF_F64;
    }
    double s = vk_abs_f64(vk_sin_f64(3.14159265358979312lf * rest));
    double above = ax < 0.5lf ? vk_lgamma_positive_f64(1.0lf + ax) - vk_log_f64(ax) : vk_lgamma_positive_f64(ax);
    return vk_log_f64(3.14159265358979312lf / (ax * s)) - above;
}

double vk_digamma_f64(double x) {
    if (x == 0.0lf) {
        return vk_copysign_f64(VK_INF_F64, -x);
    }
    if (vk_isnan_f64(x) || vk_isinf_f64(x)) {
        return x > 0.0lf ? x : VK_NAN_F64;
    }
    double result = 0.0lf;
    if (x < 0.0lf) {
        precise double rest = x - roundEven(x);
        if (rest == 0.0lf) {
            return VK_NAN_F64;
        }
        // The cotangent of pi rest; its zeros at one half come out exactly.
        double size = vk_abs_f64(rest);
        double cotangent = size > 0.25lf ? vk_tan_f64(3.14159265358979312lf * (0.5lf - size)) : 1.0lf / vk_tan_f64(3.14159265358979312lf * size);
        result = -3.14159265358979312lf * (rest < 0.0lf ? -cotangent : cotangent);
        x = 1.0lf - x;
    }
    while (x < 10.0lf) {
        result -= 1.0lf / x;
        x += 1.0lf;
    }
    double r = 1.0lf / x;
    double q = r * r;
    double p = 8.33333333333333333e-02lf;
    p = p * q - 2.10927960927960928e-02lf;
    p = p * q + 7.57575757575757576e-03lf;
    p = p * q - 4.16666666666666667e-03lf;
    p = p * q + 3.96825396825396825e-03lf;
    p = p * q - 8.33333333333333333e-03lf;
    p = p * q + 8.33333333333333333e-02lf;
    return result + (vk_log_f64(x) - 0.5lf * r - q * p);
}
