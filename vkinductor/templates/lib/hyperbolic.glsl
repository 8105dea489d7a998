// Hyperbolic functions: a polynomial near zero (minimax fits of our own), exponentials elsewhere.

float vk_tanh(float x) {
    float ax = vk_abs(x);
    if (ax < 0.625) {
        float s = x * x;
        float p = 2.147624269e-03;
        p = p * s - 8.182801306e-03;
        p = p * s + 2.170303464e-02;
        p = p * s - 5.394722149e-02;
        p = p * s + 1.333321035e-01;
        p = p * s - 3.333333135e-01;
        return ax < 1e-4 ? x : x + x * s * p;
    }
    float y = 1.0 - 2.0 / (vk_exp(2.0 * ax) + 1.0);
    return vk_isnan(x) ? x : vk_copysign(y, x);
}

float vk_sinh(float x) {
    float ax = vk_abs(x);
    if (ax < 1.0) {
        float s = x * x;
        float p = 2.817436325e-06;
        p = p * s + 1.983606780e-04;
        p = p * s + 8.333350532e-03;
        p = p * s + 1.666666716e-01;
        return ax < 1e-4 ? x : x + x * s * p;
    }
    float y;
    if (ax < 88.0) {
        float e = vk_exp(ax);
        y = 0.5 * e - 0.5 / e;
    } else {
        y = vk_exp_half(ax);
    }
    return vk_isnan(x) ? x : vk_copysign(y, x);
}

float vk_cosh(float x) {
    float ax = vk_abs(x);
    if (ax < 88.0) {
        float e = vk_exp(ax);
        return 0.5 * e + 0.5 / e;
    }
    return vk_isnan(x) ? x : vk_exp_half(ax);
}

// e^x / 2 for x >= 88, finite as long as the result is.
float vk_exp_half(float x) {
    float t = min(x, 91.0);
    float n = floor(t * 1.44269504 + 0.5);
    precise float r = t - n * 0.693359375;
    r = r + n * 2.12194440e-4;
    precise float y = 1.0 + (r + r * r * vk_exp_tail(r));
    return vk_scale2(y, int(n) - 1);
}
