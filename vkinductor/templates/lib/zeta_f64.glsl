// The forms for doubles of zeta.glsl.

// B[2k] / (2k)!
const double VK_ZETA_F64[12] = double[12](
    8.33333333333333287e-02lf,
    -1.38888888888888894e-03lf,
    3.30687830687830710e-05lf,
    -8.26719576719576754e-07lf,
    2.08767569878681002e-08lf,
    -5.28419013868749322e-10lf,
    1.33825365306846789e-11lf,
    -3.38968029632258272e-13lf,
    8.58606205627784517e-15lf,
    -2.17486869855806192e-16lf,
    5.50900282836022953e-18lf,
    -1.39544646858125247e-19lf
);

// `start` and the sum of (q + k)^-x over k >= 0, for x > 1 and q > 0: nine terms, then Euler and Maclaurin's formula
// (DLMF 25.11.7), whose coefficients are Bernoulli numbers over factorials.
double vk_zeta_from_f64(double start, double x, double q) {
    if (vk_isinf_f64(q)) {
        return start;
    }
    double first = vk_pow_f64(q, -x);
    double sum = start + first;
    if (vk_isinf_f64(sum)) {
        return sum;
    }
    double rest = 0.0lf;
    double a = q;
    double power = first;
    for (int k = 0; k < 9; k++) {
        a += 1.0lf;
        power = vk_pow_f64(a, -x);
        rest += power;
        if (power < first * 1e-18lf) {
            return sum + rest;
        }
    }
    double r = 1.0lf / a;
    double s = r * r;
    double factor = x * r;
    double tail = a / (x - 1.0lf) - 0.5lf;
    for (int k = 0; k < 12; k++) {
        tail += factor * VK_ZETA_F64[k];
        double next = x + 2.0lf * double(k);
        factor *= (next + 1.0lf) * (next + 2.0lf) * s;
    }
    return sum + (rest + power * tail);
}

// zeta(x, q). Infinite at x = 1 and at the poles q = 0, -1, -2, ..., NaN for x < 1, and for other q < 0 unless x is whole.
double vk_zeta_f64(double x, double q) {
    if (x < 1.0lf) {
        return VK_NAN_F64;
    }
    if (x == 1.0lf || (q <= 0.0lf && q == vk_floor_f64(q))) {
        return VK_INF_F64;
    }
    if (q > 0.0lf && x > 1.0lf) {
        return vk_zeta_from_f64(0.0lf, x, q);
    }
    if (vk_isnan_f64(q) || x != vk_floor_f64(x)) {
        return vk_isinf_f64(q) && q < 0.0lf ? VK_INF_F64 : VK_NAN_F64;
    }
    if (vk_isinf_f64(x)) {
        return VK_INF_F64;
    }
    bool odd = vk_fmod_f64(x, 2.0lf) != 0.0lf;
    if (q > -16.0lf) {
        // From the left, so that terms of both signs cancel before small ones are added.
        double sum = 0.0lf;
        for (; q < 0.0lf; q += 1.0lf) {
            double term = vk_pow_f64(-q, -x);
            sum += odd ? -term : term;
        }
        return vk_zeta_from_f64(sum, x, q);
    }
    // The terms left of zero are those of zeta(x, .), counted from the one nearest to zero outwards.
    double left = vk_zeta_from_f64(0.0lf, x, vk_ceil_f64(q) - q) - vk_zeta_from_f64(0.0lf, x, 1.0lf - q);
    return vk_zeta_from_f64(odd ? -left : left, x, q - vk_floor_f64(q));
}

// The n-th derivative of digamma, for whole n.
double vk_polygamma_f64(double n, double x) {
    if (n == 0.0lf) {
        return vk_digamma_f64(x);
    }
    double factorial = n < 171.0lf ? 1.0lf : VK_INF_F64;
    for (double k = 2.0lf; k <= min(n, 170.0lf); k += 1.0lf) {
        factorial *= k;
    }
    double zeta = vk_zeta_f64(n + 1.0lf, x);
    // Factors that leave the format apart may have a product that does not.
    double size = factorial * zeta;
    if (vk_isinf_f64(factorial) || (zeta != 0.0lf && vk_abs_f64(zeta) < 1e-30lf)) {
        size = vk_copysign_f64(vk_exp_f64(vk_lgamma_f64(n + 1.0lf) + vk_log_f64(vk_abs_f64(zeta))), zeta);
    }
    return vk_fmod_f64(n, 2.0lf) == 0.0lf ? -size : size;
}
