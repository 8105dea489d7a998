// The zeta function of Hurwitz and what follows from it: the derivatives of digamma.

// `start` and the sum of (q + k)^-x over k >= 0, for x > 1 and q > 0: nine terms, then Euler and Maclaurin's formula
// (DLMF 25.11.7), whose coefficients are Bernoulli numbers over factorials.
float vk_zeta_from(float start, float x, float q) {
    if (vk_isinf(q)) {
        return start;
    }
    float first = vk_pow(q, -x);
    float sum = start + first;
    if (vk_isinf(sum)) {
        return sum;
    }
    float rest = 0.0;
    float a = q;
    float power = first;
    for (int k = 0; k < 9; k++) {
        a += 1.0;
        power = vk_pow(a, -x);
        rest += power;
        if (power < first * 1e-9) {
            return sum + rest;
        }
    }
    float r = 1.0 / a;
    float s = r * r;
    float factor = x * r;
    float tail = a / (x - 1.0) - 0.5 + factor * 8.333333333e-02;
    factor *= (x + 1.0) * (x + 2.0) * s;
    tail -= factor * 1.388888889e-03;
    factor *= (x + 3.0) * (x + 4.0) * s;
    tail += factor * 3.306878307e-05;
    factor *= (x + 5.0) * (x + 6.0) * s;
    tail -= factor * 8.267195767e-07;
    factor *= (x + 7.0) * (x + 8.0) * s;
    tail += factor * 2.087675699e-08;
    return sum + (rest + power * tail);
}

// zeta(x, q). Infinite at x = 1 and at the poles q = 0, -1, -2, ..., NaN for x < 1, and for other q < 0 unless x is whole.
float vk_zeta(float x, float q) {
    if (x < 1.0) {
        return VK_NAN;
    }
    if (x == 1.0 || (q <= 0.0 && q == vk_floor(q))) {
        return VK_INF;
    }
    if (q > 0.0 && x > 1.0) {
        return vk_zeta_from(0.0, x, q);
    }
    if (vk_isnan(q) || x != vk_floor(x)) {
        return vk_isinf(q) && q < 0.0 ? VK_INF : VK_NAN;
    }
    if (vk_isinf(x)) {
        return VK_INF;
    }
    bool odd = vk_fmod(x, 2.0) != 0.0;
    if (q > -16.0) {
        // From the left, so that terms of both signs cancel before small ones are added.
        float sum = 0.0;
        for (; q < 0.0; q += 1.0) {
            float term = vk_pow(-q, -x);
            sum += odd ? -term : term;
        }
        return vk_zeta_from(sum, x, q);
    }
    // The terms left of zero are those of zeta(x, .), counted from the one nearest to zero outwards.
    float left = vk_zeta_from(0.0, x, vk_ceil(q) - q) - vk_zeta_from(0.0, x, 1.0 - q);
    return vk_zeta_from(odd ? -left : left, x, q - vk_floor(q));
}

// The n-th derivative of digamma, for whole n.
float vk_polygamma(float n, float x) {
    if (n == 0.0) {
        return vk_digamma(x);
    }
    float factorial = n < 35.0 ? 1.0 : VK_INF;
    for (float k = 2.0; k <= min(n, 34.0); k += 1.0) {
        factorial *= k;
    }
    float zeta = vk_zeta(n + 1.0, x);
    // Factors that leave the format apart may have a product that does not.
    float size = factorial * zeta;
    if (vk_isinf(factorial) || (zeta != 0.0 && vk_abs(zeta) < 1e-30)) {
        size = vk_copysign(vk_exp(vk_lgamma(n + 1.0) + vk_log(vk_abs(zeta))), zeta);
    }
    return vk_fmod(n, 2.0) == 0.0 ? -size : size;
}
