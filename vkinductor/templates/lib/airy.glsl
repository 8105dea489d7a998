// The Airy function Ai by DLMF 9.7: with z = 2/3 |x|^(3/2), a decay on the right, a wave on the left, and a polynomial in
// the middle. Fits of the project's own.

// Ai(x) 2 sqrt(pi) x^(1/4) e^z for v = 1/z <= 1.5
float vk_airy_decay(float v) {
    if (v < 0.4) {
        float t = v * 5.0 - 1.0;
        float p = 1.471833383e-06;
        p = p * t - 5.436171094e-06;
        p = p * t + 2.166838725e-05;
        p = p * t - 1.215889941e-04;
        p = p * t + 9.107323245e-04;
        p = p * t - 1.157959688e-02;
        p = p * t + 9.873594986e-01;
        return p;
    }
    float t = (v - 0.4) * 1.818181818 - 1.0;
    float p = -2.676622452e-06;
    p = p * t + 8.407574558e-06;
    p = p * t - 2.445274408e-05;
    p = p * t + 9.825441503e-05;
    p = p * t - 4.479506431e-04;
    p = p * t + 2.484808024e-03;
    p = p * t - 2.075251670e-02;
    p = p * t + 9.527676687e-01;
    return p;
}

// Ai(x) on [-3, 1]
float vk_airy_middle(float x) {
    float u = (x + 1.0) * 0.5;
    float p = 8.213539036e-04;
    p = p * u - 6.926582188e-04;
    p = p * u - 6.867234141e-03;
    p = p * u + 1.582225098e-02;
    p = p * u + 9.604756455e-03;
    p = p * u - 9.324659120e-02;
    p = p * u + 1.201799466e-01;
    p = p * u + 1.484575386e-01;
    p = p * u - 5.739949780e-01;
    p = p * u + 3.434572647e-01;
    p = p * u + 7.276307072e-01;
    p = p * u - 1.071119583e+00;
    p = p * u - 2.032119697e-02;
    p = p * u + 5.355608616e-01;
    return p;
}

// z = 2/3 x sqrt(x), and what the float leaves of it: it is an exponent or a phase.
float vk_airy_phase(float x, out float low) {
    precise float root = sqrt(x);
    precise float square = root * root;
    precise float root_low = ((x - square) - vk_product_error(root, root, square)) / (2.0 * root);
    precise float product = x * root;
    precise float product_low = vk_product_error(x, root, product) + x * root_low;
    precise float z = product * 0.666666687;
    low = vk_product_error(product, 0.666666687, z) + product_low * 0.666666687 - product * 1.98682e-08;
    return z;
}

// Ai(-x) for x > 3
float vk_airy_wave(float x) {
    float low;
    float z = vk_airy_phase(x, low);
    float v = 1.0 / z;
    float t = v * v * 24.0 - 1.0;
    float p = -4.148738885e-07;
    p = p * t + 1.509726082e-06;
    p = p * t - 7.243065809e-06;
    p = p * t + 6.384711068e-05;
    p = p * t - 1.389507982e-03;
    p = p * t + 9.985374729e-01;
    float q = -1.416498305e-06;
    q = q * t + 4.373139013e-06;
    q = q * t - 1.640850224e-05;
    q = q * t + 1.066621482e-04;
    q = q * t - 1.295193777e-03;
    q = q * t + 6.802037374e-02;
    float s = vk_sin(z);
    float c = vk_cos(z);
    float s_low = s + c * low;
    c -= s * low;
    s = s_low;
    // cos(z - pi/4) and sin(z - pi/4), each times sqrt(2); 1/sqrt(2 pi)
    return 0.398942280 * (p * (c + s) + v * q * (s - c)) / vk_sqrt(vk_sqrt(x));
}

float vk_airy_ai(float x) {
    if (vk_isnan(x) || vk_isinf(x)) {
        return VK_NAN;
    }
    if (x < -3.0) {
        return vk_airy_wave(-x);
    }
    if (x < 1.0) {
        return vk_airy_middle(x);
    }
    if (x > 30.0) {
        return 0.0;
    }
    float low;
    float z = vk_airy_phase(x, low);
    return 0.282094792 * vk_exp(-z) * (1.0 - low) * vk_airy_decay(1.0 / z) / sqrt(sqrt(x));
}
