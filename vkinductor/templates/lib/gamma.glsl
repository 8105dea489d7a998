// log|gamma| and its derivative. Polynomials are minimax fits of our own; the asymptotic series are Stirling's, with
// Bernoulli numbers.

// log(gamma(x)) for x >= 0.5
float vk_lgamma_positive(float x) {
    if (x < 1.5) {
        float u = x - 1.0;
        float p = -1.569047719e-01;
        p = p * u + 1.769497395e-01;
        p = p * u - 4.110982642e-02;
        p = p * u + 3.666435555e-02;
        p = p * u - 9.721192718e-02;
        p = p * u + 1.097617075e-01;
        p = p * u - 1.108499542e-01;
        p = p * u + 1.244744211e-01;
        p = p * u - 1.440590918e-01;
        p = p * u + 1.696131229e-01;
        p = p * u - 2.073861510e-01;
        p = p * u + 2.705794871e-01;
        p = p * u - 4.006856084e-01;
        p = p * u + 8.224670291e-01;
        p = p * u - 5.772156715e-01;
        return u * p;
    }
    if (x < 7.5) {
        float product = 1.0;
        while (x >= 2.5) {
            x -= 1.0;
            product *= x;
        }
        float u = x - 2.0;
        float p = -2.698357857e-04;
        p = p * u + 5.698254681e-04;
        p = p * u - 1.177847735e-03;
        p = p * u + 2.879055217e-03;
        p = p * u - 7.387426682e-03;
        p = p * u + 2.058160305e-02;
        p = p * u - 6.735222042e-02;
        p = p * u + 3.224670291e-01;
        p = p * u + 4.227843285e-01;
        return product == 1.0 ? u * p : vk_log(product) + u * p;
    }
    float r = 1.0 / x;
    float q = r * r;
    float tail = r * (8.333333333e-02 + q * (-2.777777778e-03 + q * 7.936507937e-04));
    precise float y = (x - 0.5) * (vk_log(x) - 1.0) + (0.418938533 + tail);
    return y;
}

// log|gamma(x)|: infinite at 0, -1, -2, ...
float vk_lgamma(float x) {
    if (vk_isnan(x)) {
        return x;
    }
    float ax = vk_abs(x);
    if (x >= 0.5 || vk_isinf(x)) {
        return vk_isinf(x) ? ax : vk_lgamma_positive(x);
    }
    if (ax < 1e-5) {
        // -log|x| - euler x
        return -vk_log(ax) - 0.577215665 * x;
    }
    if (x > 0.0) {
        return vk_lgamma_positive(1.0 + x) - vk_log(x);
    }
    // gamma(x) gamma(-x) = -pi / (x sin(pi x)); the nearest integer is taken off before the sine.
    precise float rest = ax - roundEven(ax);
    if (rest == 0.0) {
        return VK_INF;
    }
    float s = vk_abs(vk_sin(3.14159265 * rest));
    float above = ax < 0.5 ? vk_lgamma_positive(1.0 + ax) - vk_log(ax) : vk_lgamma_positive(ax);
    return vk_log(3.14159265 / (ax * s)) - above;
}

// The derivative of log(gamma(x)): minus infinity of the sign of a zero, NaN at -1, -2, ...
float vk_digamma(float x) {
    if (x == 0.0) {
        return vk_copysign(VK_INF, -x);
    }
    if (vk_isnan(x) || vk_isinf(x)) {
        return x > 0.0 ? x : VK_NAN;
    }
    float result = 0.0;
    if (x < 0.0) {
        precise float rest = x - roundEven(x);
        if (rest == 0.0) {
            return VK_NAN;
        }
        // The cotangent of pi rest; its zeros at one half come out exactly.
        float size = vk_abs(rest);
        float cotangent = size > 0.25 ? vk_tan(3.14159265 * (0.5 - size)) : 1.0 / vk_tan(3.14159265 * size);
        result = -3.14159265 * (rest < 0.0 ? -cotangent : cotangent);
        x = 1.0 - x;
    }
    // psi(x) = psi(x + 1) - 1/x up to where the series in 1/x^2 is good.
    while (x < 6.0) {
        result -= 1.0 / x;
        x += 1.0;
    }
    float r = 1.0 / x;
    float q = r * r;
    float tail = q * (8.333333333e-02 - q * (8.333333333e-03 - q * (3.968253968e-03 - q * 4.166666667e-03)));
    return result + (vk_log(x) - 0.5 * r - tail);
}
