// The incomplete gamma functions P and Q of a > 0 and x >= 0 (DLMF 8): a power series left of x = a, a continued fraction
// right of it, and for large a near x = a Temme's uniform expansion (DLMF 8.12.7), whose coefficients
// `tests/templates/series_igamma.py` makes.

// d - log(1 + d)
float vk_log1p_rest(float d) {
    if (vk_abs(d) > 0.35) {
        return d - vk_log1p(d);
    }
    float r = d / (2.0 + d);
    float s = r * r;
    float p = 1.0 / 11.0;
    p = p * s + 1.0 / 9.0;
    p = p * s + 1.0 / 7.0;
    p = p * s + 1.0 / 5.0;
    p = p * s + 1.0 / 3.0;
    return r * (d - 2.0 * s * p);
}

// x^a e^-x / gamma(a)
float vk_igamma_factor(float a, float x) {
    if (a < 8.0) {
        return vk_exp(a * vk_log(x) - x - vk_lgamma(a));
    }
    // gamma(a) = sqrt(2 pi / a) (a / e)^a times the exponential of Stirling's series.
    float r = 1.0 / a;
    float s = r * r;
    float t = 8.333333333e-02 + s * (-2.777777778e-03 + s * 7.936507937e-04);
    float rest = a * vk_log1p_rest((x - a) / a);
    return vk_sqrt(a * 0.159154943) * vk_exp(-rest - r * t);
}

// The sum of c[k](eta) / a^k.
float vk_igamma_uniform_sum(float a, float eta) {
    float r = 1.0 / a;
    float sum = 0.0;
    float c;
    c = 6.494341564e-04;
    sum = sum * r + c;
    c = 7.716049383e-04;
    c = c * eta - 2.681327160e-03;
    c = c * eta + 4.133597884e-03;
    sum = sum * r + c;
    c = 2.057613169e-04;
    c = c * eta - 9.902263374e-04;
    c = c * eta + 2.645502646e-03;
    c = c * eta - 3.472222222e-03;
    c = c * eta - 1.851851852e-03;
    sum = sum * r + c;
    c = 3.919263179e-05;
    c = c * eta - 1.787551440e-04;
    c = c * eta + 3.527336861e-04;
    c = c * eta + 1.157407407e-03;
    c = c * eta - 1.481481481e-02;
    c = c * eta + 8.333333333e-02;
    c = c * eta - 3.333333333e-01;
    sum = sum * r + c;
    return sum;
}

// P or Q for large a and x near a.
float vk_igamma_uniform(float a, float x, bool upper) {
    float d = (x - a) / a;
    float half_square = vk_log1p_rest(d);
    float eta = vk_copysign(vk_sqrt(2.0 * half_square), d);
    float root = vk_copysign(vk_sqrt(a * half_square), d);
    float rest = vk_exp(-a * half_square) / vk_sqrt(6.283185307 * a) * vk_igamma_uniform_sum(a, eta);
    return upper ? 0.5 * vk_erfc(root) + rest : 0.5 * vk_erfc(-root) - rest;
}

// P by its power series.
float vk_igamma_series(float a, float x) {
    float term = 1.0 / a;
    float sum = term;
    for (int k = 1; k < 400 && term > sum * 1e-8; k++) {
        term *= x / (a + float(k));
        sum += term;
    }
    return vk_igamma_factor(a, x) * sum;
}

// Q by its continued fraction (DLMF 8.9.2, evaluated as Lentz does).
float vk_igammac_fraction(float a, float x) {
    float b = x + 1.0 - a;
    float c = 1e30;
    float d = 1.0 / (b == 0.0 ? 1e-30 : b);
    float h = d;
    for (int k = 1; k < 400; k++) {
        float n = -float(k) * (float(k) - a);
        b += 2.0;
        d = n * d + b;
        d = 1.0 / (vk_abs(d) < 1e-30 ? 1e-30 : d);
        c = b + n / c;
        c = vk_abs(c) < 1e-30 ? 1e-30 : c;
        float step = c * d;
        h *= step;
        if (vk_abs(step - 1.0) < 6e-8) {
            break;
        }
    }
    return vk_igamma_factor(a, x) * h;
}

// Q for small x: 1 - x^a / gamma(1 + a) times a series whose first term is 1 (DLMF 8.7.3).
float vk_igammac_small(float a, float x) {
    float factor = 1.0;
    float sum = 0.0;
    for (int k = 1; k < 60; k++) {
        factor *= -x / float(k);
        sum += factor / (a + float(k));
        if (vk_abs(factor) < 1e-8) {
            break;
        }
    }
    float power = a * vk_log(x) - vk_lgamma(1.0 + a);
    return -vk_expm1(power) - vk_exp(power) * a * sum;
}

// P(a, x): NaN for a negative argument and where both are zero or infinite.
float vk_igamma(float a, float x) {
    if (a < 0.0 || x < 0.0 || (a == 0.0 && !(x > 0.0)) || (vk_isinf(a) && vk_isinf(x))) {
        return VK_NAN;
    }
    if (a != 0.0 && (x == 0.0 || vk_isinf(a))) {
        return 0.0;
    }
    if (a == 0.0 || vk_isinf(x)) {
        return 1.0;
    }
    if (vk_isnan(a) || vk_isnan(x)) {
        return VK_NAN;
    }
    if (a > 20.0 && vk_abs(x - a) < 0.3 * a) {
        return vk_igamma_uniform(a, x, false);
    }
    return x > 1.1 && x > a ? 1.0 - vk_igammac_fraction(a, x) : vk_igamma_series(a, x);
}

// Q(a, x): NaN for a negative argument and where both are zero or infinite.
float vk_igammac(float a, float x) {
    if (a < 0.0 || x < 0.0 || (a == 0.0 && !(x > 0.0)) || (vk_isinf(a) && vk_isinf(x))) {
        return VK_NAN;
    }
    if (a != 0.0 && (x == 0.0 || vk_isinf(a))) {
        return 1.0;
    }
    if (a == 0.0 || vk_isinf(x)) {
        return 0.0;
    }
    if (vk_isnan(a) || vk_isnan(x)) {
        return VK_NAN;
    }
    if (a > 20.0 && vk_abs(x - a) < 0.3 * a) {
        return vk_igamma_uniform(a, x, true);
    }
    if (x > 1.1) {
        return x < a ? 1.0 - vk_igamma_series(a, x) : vk_igammac_fraction(a, x);
    }
    float bound = x <= 0.5 ? -0.4 / vk_log(x) : 0.75 * x;
    return bound < a ? 1.0 - vk_igamma_series(a, x) : vk_igammac_small(a, x);
}
