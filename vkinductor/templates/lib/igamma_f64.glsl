// The forms for doubles of igamma.glsl.

// d - log(1 + d)
double vk_log1p_rest_f64(double d) {
    if (vk_abs_f64(d) > 0.35lf) {
        return d - vk_log1p_f64(d);
    }
    double r = d / (2.0lf + d);
    double s = r * r;
    double p = 1.0lf / 23.0lf;
    p = p * s + 1.0lf / 21.0lf;
    p = p * s + 1.0lf / 19.0lf;
    p = p * s + 1.0lf / 17.0lf;
    p = p * s + 1.0lf / 15.0lf;
    p = p * s + 1.0lf / 13.0lf;
    p = p * s + 1.0lf / 11.0lf;
    p = p * s + 1.0lf / 9.0lf;
    p = p * s + 1.0lf / 7.0lf;
    p = p * s + 1.0lf / 5.0lf;
    p = p * s + 1.0lf / 3.0lf;
    return r * (d - 2.0lf * s * p);
}

// x^a e^-x / gamma(a)
double vk_igamma_factor_f64(double a, double x) {
    if (a < 16.0lf) {
        return vk_exp_f64(a * vk_log_f64(x) - x - vk_lgamma_f64(a));
    }
    // gamma(a) = sqrt(2 pi / a) (a / e)^a times the exponential of Stirling's series.
    double r = 1.0lf / a;
    double s = r * r;
    double t = -2.95506535947712423e-02lf;
    t = t * s + 6.41025641025641003e-03lf;
    t = t * s - 1.91752691752691763e-03lf;
    t = t * s + 8.41750841750841714e-04lf;
    t = t * s - 5.95238095238095292e-04lf;
    t = t * s + 7.93650793650793650e-04lf;
    t = t * s - 2.77777777777777788e-03lf;
    t = t * s + 8.33333333333333287e-02lf;
    double rest = a * vk_log1p_rest_f64((x - a) / a);
    return vk_sqrt_f64(a * 0.15915494309189535lf) * vk_exp_f64(-rest - r * t);
}

// The sum of c[k](eta) / a^k.
double vk_igamma_uniform_sum_f64(double a, double eta) {
    double r = 1.0lf / a;
    double sum = 0.0lf;
    double c;
    c = 2.70878209671804500e-04lf;
    c = c * eta - 5.92166437353693932e-04lf;
    c = c * eta + 5.31307936463992249e-04lf;
    sum = sum * r + c;
    c = 6.79778047793720800e-05lf;
    c = c * eta - 1.99325705161888469e-04lf;
    c = c * eta + 2.77275324495939183e-04lf;
    c = c * eta - 6.97281375836585711e-05lf;
    c = c * eta - 3.36798553366358131e-04lf;
    sum = sum * r + c;
    c = 1.13757269706784187e-05lf;
    c = c * eta - 3.96836504717943471e-05lf;
    c = c * eta + 6.64149821546512189e-05lf;
    c = c * eta - 1.46384525788434181e-06lf;
    c = c * eta - 2.99072480303190177e-04lf;
    c = c * eta + 7.84039221720066615e-04lf;
    c = c * eta - 8.61888290916711726e-04lf;
    sum = sum * r + c;
    c = 1.42309007324358833e-06lf;
    c = c * eta - 5.67495282699159655e-06lf;
    c = c * eta + 1.10826541153473025e-05lf;
    c = c * eta - 2.39650511386729680e-07lf;
    c = c * eta - 7.56180167188397662e-05lf;
    c = c * eta + 2.67720632062838854e-04lf;
    c = c * eta - 4.69189494395255702e-04lf;
    c = c * eta + 2.29472093621399168e-04lf;
    c = c * eta + 6.49434156378600773e-04lf;
    sum = sum * r + c;
    c = 1.42806142060642425e-07lf;
    c = c * eta - 6.29899213838005482e-07lf;
    c = c * eta + 1.37219573090629342e-06lf;
    c = c * eta + 3.42357873409613781e-08lf;
    c = c * eta - 1.27606351886187284e-05lf;
    c = c * eta + 5.29234488291201250e-05lf;
    c = c * eta - 1.07366532263651599e-04lf;
    c = c * eta + 2.00938786008230470e-06lf;
    c = c * eta + 7.71604938271604895e-04lf;
    c = c * eta - 2.68132716049382727e-03lf;
    c = c * eta + 4.13359788359788337e-03lf;
    sum = sum * r + c;
    c = 1.19516285997781477e-08lf;
    c = c * eta - 5.75254560351770471e-08lf;
    c = c * eta + 1.37863344691572092e-07lf;
    c = c * eta + 4.64712780280743402e-09lf;
    c = c * eta - 1.61209008945634465e-06lf;
    c = c * eta + 7.64916091608110982e-06lf;
    c = c * eta - 1.80985503344899767e-05lf;
    c = c * eta - 4.01877572016460897e-07lf;
    c = c * eta + 2.05761316872427979e-04lf;
    c = c * eta - 9.90226337448559630e-04lf;
    c = c * eta + 2.64550264550264536e-03lf;
    c = c * eta - 3.47222222222222203e-03lf;
    c = c * eta - 1.85185185185185192e-03lf;
    sum = sum * r + c;
    c = 9.14769958223679021e-10lf;
    c = c * eta - 4.38203601845335294e-09lf;
    c = c * eta + 1.02618097842403086e-08lf;
    c = c * eta + 6.70785354340149841e-09lf;
    c = c * eta - 1.76659527368260782e-07lf;
    c = c * eta + 8.29671134095308652e-07lf;
    c = c * eta - 1.85406221071515997e-06lf;
    c = c * eta - 2.18544851067999198e-06lf;
    c = c * eta + 3.91926317852243767e-05lf;
    c = c * eta - 1.78755144032921798e-04lf;
    c = c * eta + 3.52733686067019424e-04lf;
    c = c * eta + 1.15740740740740734e-03lf;
    c = c * eta - 1.48148148148148154e-02lf;
    c = c * eta + 8.33333333333333287e-02lf;
    c = c * eta - 3.33333333333333315e-01lf;
    sum = sum * r + c;
    return sum;
}

// P or Q for large a and x near a.
double vk_igamma_uniform_f64(double a, double x, bool upper) {
    double d = (x - a) / a;
    double half_square = vk_log1p_rest_f64(d);
    double eta = vk_copysign_f64(vk_sqrt_f64(2.0lf * half_square), d);
    double root = vk_copysign_f64(vk_sqrt_f64(a * half_square), d);
    double rest = vk_exp_f64(-a * half_square) / vk_sqrt_f64(6.283185307179586lf * a) * vk_igamma_uniform_sum_f64(a, eta);
    return upper ? 0.5lf * vk_erfc_f64(root) + rest : 0.5lf * vk_erfc_f64(-root) - rest;
}

// P by its power series.
double vk_igamma_series_f64(double a, double x) {
    double term = 1.0lf / a;
    double sum = term;
    for (int k = 1; k < 1000 && term > sum * 1e-17lf; k++) {
        term *= x / (a + double(k));
        sum += term;
    }
    return vk_igamma_factor_f64(a, x) * sum;
}

// Q by its continued fraction (DLMF 8.9.2, evaluated as Lentz does).
double vk_igammac_fraction_f64(double a, double x) {
    double b = x + 1.0lf - a;
    double c = 1e300lf;
    double d = 1.0lf / (b == 0.0lf ? 1e-300lf : b);
    double h = d;
    for (int k = 1; k < 1000; k++) {
        double n = -double(k) * (double(k) - a);
        b += 2.0lf;
        d = n * d + b;
        d = 1.0lf / (vk_abs_f64(d) < 1e-300lf ? 1e-300lf : d);
        c = b + n / c;
        c = vk_abs_f64(c) < 1e-300lf ? 1e-300lf : c;
        double step = c * d;
        h *= step;
        if (vk_abs_f64(step - 1.0lf) < 1e-16lf) {
            break;
        }
    }
    return vk_igamma_factor_f64(a, x) * h;
}

// Q for small x: 1 - x^a / gamma(1 + a) times a series whose first term is 1 (DLMF 8.7.3).
double vk_igammac_small_f64(double a, double x) {
    double factor = 1.0lf;
    double sum = 0.0lf;
    for (int k = 1; k < 60; k++) {
        factor *= -x / double(k);
        sum += factor / (a + double(k));
        if (vk_abs_f64(factor) < 1e-17lf) {
            break;
        }
    }
    double power = a * vk_log_f64(x) - vk_lgamma_f64(1.0lf + a);
    return -vk_expm1_f64(power) - vk_exp_f64(power) * a * sum;
}

// P(a, x): NaN for a negative argument and where both are zero or infinite.
double vk_igamma_f64(double a, double x) {
    if (a < 0.0lf || x < 0.0lf || (a == 0.0lf && !(x > 0.0lf)) || (vk_isinf_f64(a) && vk_isinf_f64(x))) {
        return VK_NAN_F64;
    }
    if (a != 0.0lf && (x == 0.0lf || vk_isinf_f64(a))) {
        return 0.0lf;
    }
    if (a == 0.0lf || vk_isinf_f64(x)) {
        return 1.0lf;
    }
    if (vk_isnan_f64(a) || vk_isnan_f64(x)) {
        return VK_NAN_F64;
    }
    if (a > 100.0lf && vk_abs_f64(x - a) < 0.3lf * a) {
        return vk_igamma_uniform_f64(a, x, false);
    }
    return x > 1.1lf && x > a ? 1.0lf - vk_igammac_fraction_f64(a, x) : vk_igamma_series_f64(a, x);
}

// Q(a, x): NaN for a negative argument and where both are zero or infinite.
double vk_igammac_f64(double a, double x) {
    if (a < 0.0lf || x < 0.0lf || (a == 0.0lf && !(x > 0.0lf)) || (vk_isinf_f64(a) && vk_isinf_f64(x))) {
        return VK_NAN_F64;
    }
    if (a != 0.0lf && (x == 0.0lf || vk_isinf_f64(a))) {
        return 1.0lf;
    }
    if (a == 0.0lf || vk_isinf_f64(x)) {
        return 0.0lf;
    }
    if (vk_isnan_f64(a) || vk_isnan_f64(x)) {
        return VK_NAN_F64;
    }
    if (a > 100.0lf && vk_abs_f64(x - a) < 0.3lf * a) {
        return vk_igamma_uniform_f64(a, x, true);
    }
    if (x > 1.1lf) {
        return x < a ? 1.0lf - vk_igamma_series_f64(a, x) : vk_igammac_fraction_f64(a, x);
    }
    double bound = x <= 0.5lf ? -0.4lf / vk_log_f64(x) : 0.75lf * x;
    return bound < a ? 1.0lf - vk_igamma_series_f64(a, x) : vk_igammac_small_f64(a, x);
}
