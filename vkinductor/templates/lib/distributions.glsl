// Random numbers of distributions with parameters, by exact algorithms. Element `offset` of a draw has a stream of its own:
// the Philox counter holds the element and a number that is counted up with each four words.

vec4 vk_uniforms(int64_t seed, int64_t offset, uint number) {
    uvec4 c = uvec4(uint(offset), uint(offset >> 32), number, 1u);
    uvec4 words = vk_philox_of(uint64_t(seed), c);
    // In (0, 1): logarithms are taken of them.
    return (vec4(words >> 8) + 0.5) * 5.9604645e-8;
}

// What Stirling's formula for log(k!) lacks (Loader, "Fast and accurate computation of binomial probabilities", 2000).
float vk_stirling_rest(float k) {
    if (k < 10.0) {
        return vk_lgamma(k + 1.0) - (k + 0.5) * vk_log(k) + k - 0.918938533;
    }
    float r = 1.0 / (k * k);
    return (8.333333333e-02 - (2.777777778e-03 - 7.936507937e-04 * r) * r) / k;
}

// k log(k / m) + m - k
float vk_deviance(float k, float m) {
    return k * vk_log1p_rest((m - k) / k);
}

float vk_log_poisson(float k, float rate) {
    if (k < 0.5) {
        return -rate;
    }
    return -vk_stirling_rest(k) - vk_deviance(k, rate) - 0.5 * vk_log(6.283185307 * k);
}

// Products of uniform numbers (Knuth) below a rate of 10, above it PTRS (Hoermann, "The transformed rejection method for
// generating Poisson random variables", 1993).
float vk_poisson(int64_t seed, int64_t offset, float rate) {
    if (!(rate > 0.0)) {
        return vk_isnan(rate) ? rate : 0.0;
    }
    if (rate < 10.0) {
        float limit = vk_exp(-rate);
        float product = 1.0;
        for (uint i = 0u; i < 256u; i++) {
            vec4 u = vk_uniforms(seed, offset, i);
            for (int j = 0; j < 4; j++) {
                product *= u[j];
                if (product <= limit) {
                    return float(4u * i) + float(j);
                }
            }
        }
        return 1024.0;
    }
    float b = 0.931 + 2.53 * vk_sqrt(rate);
    float a = -0.059 + 0.02483 * b;
    float alpha = 1.1239 + 1.1328 / (b - 3.4);
    float inner = 0.9277 - 3.6224 / (b - 2.0);
    for (uint i = 0u; i < 1024u; i++) {
        vec4 word = vk_uniforms(seed, offset, i);
        float u = word.x - 0.5;
        float us = 0.5 - vk_abs(u);
        float k = floor((2.0 * a / us + b) * u + rate + 0.43);
        if (us >= 0.07 && word.y <= inner) {
            return k;
        }
        if (k < 0.0 || (us < 0.013 && word.y > us)) {
            continue;
        }
        if (vk_log(word.y * alpha / (a / (us * us) + b)) <= vk_log_poisson(k, rate)) {
            return k;
        }
    }
    return floor(rate);
}

float vk_log_binomial(float k, float n, float p) {
    if (k < 0.5) {
        return n * vk_log1p(-p);
    }
    if (k > n - 0.5) {
        return n * vk_log(p);
    }
    float rest = vk_stirling_rest(n) - vk_stirling_rest(k) - vk_stirling_rest(n - k);
    float away = vk_deviance(k, n * p) + vk_deviance(n - k, n * (1.0 - p));
    return rest - away - 0.5 * vk_log(6.283185307 * k * (1.0 - k / n));
}

// For p up to one half: gaps between successes (Devroye, "Non-uniform random variate generation", 1986, X.4) where less than
// 10 are expected, else BTRS (Hoermann, "The generation of binomial random variates", 1993).
float vk_binomial_half(int64_t seed, int64_t offset, float n, float p) {
    if (n * p < 10.0) {
        float scale = vk_log1p(-p);
        float place = 0.0;
        for (uint i = 0u; i < 256u; i++) {
            vec4 u = vk_uniforms(seed, offset, i);
            for (int j = 0; j < 4; j++) {
                place += ceil(vk_log(u[j]) / scale);
                if (place > n) {
                    return float(4u * i) + float(j);
                }
            }
        }
        return min(n, 1024.0);
    }
    float deviation = vk_sqrt(n * p * (1.0 - p));
    float b = 1.15 + 2.53 * deviation;
    float a = -0.0873 + 0.0248 * b + 0.01 * p;
    float inner = 0.92 - 4.2 / b;
    float alpha = (2.83 + 5.1 / b) * deviation;
    float largest = vk_log_binomial(floor((n + 1.0) * p), n, p);
    for (uint i = 0u; i < 1024u; i++) {
        vec4 word = vk_uniforms(seed, offset, i);
        float u = word.x - 0.5;
        float us = 0.5 - vk_abs(u);
        float k = floor((2.0 * a / us + b) * u + n * p + 0.5);
        if (k < 0.0 || k > n) {
            continue;
        }
        if (us >= 0.07 && word.y <= inner) {
            return k;
        }
        if (vk_log(word.y * alpha / (a / (us * us) + b)) <= vk_log_binomial(k, n, p) - largest) {
            return k;
        }
    }
    return floor(n * p);
}

float vk_binomial(int64_t seed, int64_t offset, float n, float p) {
    if (vk_isnan(n) || vk_isnan(p)) {
        return n + p;
    }
    if (n <= 0.0 || p <= 0.0) {
        return 0.0;
    }
    if (p >= 1.0) {
        return n;
    }
    return p <= 0.5 ? vk_binomial_half(seed, offset, n, p) : n - vk_binomial_half(seed, offset, n, 1.0 - p);
}

// Of scale 1 (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000).
float vk_gamma_variate(int64_t seed, int64_t offset, float shape) {
    if (!(shape > 0.0)) {
        return vk_isnan(shape) ? shape : 0.0;
    }
    float scale = 1.0;
    if (shape < 1.0) {
        scale = vk_pow(vk_uniforms(seed, offset, 0xffffffffu).x, 1.0 / shape);
        shape += 1.0;
    }
    float d = shape - 1.0 / 3.0;
    float c = 1.0 / vk_sqrt(9.0 * d);
    for (uint i = 0u; i < 1024u; i++) {
        vec4 u = vk_uniforms(seed, offset, i);
        float x = vk_sqrt(-2.0 * vk_log(u.x)) * vk_cos(6.283185307 * u.y);
        float y = 1.0 + c * x;
        if (y <= 0.0) {
            continue;
        }
        float v = y * y * y;
        if (vk_log(u.z) < 0.5 * x * x + d * (1.0 - v + vk_log(v))) {
            return max(scale * d * v, 1.17549435e-38);
        }
    }
    return scale * d;
}
