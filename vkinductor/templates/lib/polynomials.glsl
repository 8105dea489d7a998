// Orthogonal polynomials of a degree that is a number: its integer part counts, and below zero the value is 0, as in
// torch. Recurrences and closed forms are those of DLMF 18.5 and 18.9.

int vk_degree(float n) {
    return n > -1.0 ? int(min(n, 2147483520.0)) : -1;
}

// The Chebyshev recurrence from p[0] = 1 and p[1] = q; it ends early at the first NaN.
float vk_chebyshev(float x, float q, int n) {
    float p = 1.0;
    if (n <= 0) {
        return n < 0 ? 0.0 : p;
    }
    for (int k = 1; k < n && !vk_isnan(q); k++) {
        float next = 2.0 * x * q - p;
        p = q;
        q = next;
    }
    return q;
}

float vk_chebyshev_t(float x, float n) {
    int degree = vk_degree(n);
    if (vk_abs(x) == 1.0 && degree >= 0) {
        return x > 0.0 || (degree & 1) == 0 ? 1.0 : -1.0;
    }
    if (degree > 6 && vk_abs(x) < 1.0) {
        return vk_cos(float(degree) * vk_acos(x));
    }
    return vk_chebyshev(x, x, degree);
}

float vk_chebyshev_u(float x, float n) {
    int degree = vk_degree(n);
    if (vk_abs(x) == 1.0 && degree >= 0) {
        float size = float(degree) + 1.0;
        return x > 0.0 || (degree & 1) == 0 ? size : -size;
    }
    if (degree > 8 && vk_abs(x) < 1.0) {
        float t = vk_acos(x);
        return vk_sin((float(degree) + 1.0) * t) / vk_sin(t);
    }
    return vk_chebyshev(x, 2.0 * x, degree);
}

float vk_chebyshev_v(float x, float n) {
    int degree = vk_degree(n);
    if (vk_abs(x) == 1.0 && degree >= 0) {
        float size = 2.0 * float(degree) + 1.0;
        return x > 0.0 ? 1.0 : (degree & 1) == 0 ? size : -size;
    }
    if (degree > 8 && vk_abs(x) < 1.0) {
        float t = vk_acos(x);
        return vk_cos((float(degree) + 0.5) * t) / vk_cos(0.5 * t);
    }
    return vk_chebyshev(x, 2.0 * x - 1.0, degree);
}

float vk_chebyshev_w(float x, float n) {
    int degree = vk_degree(n);
    if (vk_abs(x) == 1.0 && degree >= 0) {
        return x > 0.0 ? 2.0 * float(degree) + 1.0 : (degree & 1) == 0 ? 1.0 : -1.0;
    }
    if (degree > 8 && vk_abs(x) < 1.0) {
        float t = vk_acos(x);
        return vk_sin((float(degree) + 0.5) * t) / vk_sin(0.5 * t);
    }
    return vk_chebyshev(x, 2.0 * x + 1.0, degree);
}

// The shifted ones live on [0, 1].
float vk_shifted_chebyshev_t(float x, float n) {
    return vk_chebyshev_t(2.0 * x - 1.0, n);
}

float vk_shifted_chebyshev_u(float x, float n) {
    return vk_chebyshev_u(2.0 * x - 1.0, n);
}

float vk_shifted_chebyshev_v(float x, float n) {
    return vk_chebyshev_v(2.0 * x - 1.0, n);
}

float vk_shifted_chebyshev_w(float x, float n) {
    return vk_chebyshev_w(2.0 * x - 1.0, n);
}

// Past the degree where the values leave the format torch gives NaN.
float vk_hermite_h(float x, float n) {
    int degree = vk_degree(n);
    if (degree <= 0) {
        return degree < 0 ? 0.0 : 1.0;
    }
    if (degree > 128) {
        return VK_NAN;
    }
    float p = 1.0;
    float q = 2.0 * x;
    for (int k = 1; k < degree; k++) {
        float next = 2.0 * (x * q - float(k) * p);
        p = q;
        q = next;
    }
    return q;
}

float vk_hermite_he(float x, float n) {
    int degree = vk_degree(n);
    if (degree <= 0) {
        return degree < 0 ? 0.0 : 1.0;
    }
    if (degree > 128) {
        return VK_NAN;
    }
    float p = 1.0;
    float q = x;
    for (int k = 1; k < degree; k++) {
        float next = x * q - float(k) * p;
        p = q;
        q = next;
    }
    return q;
}

float vk_laguerre_l(float x, float n) {
    int degree = vk_degree(n);
    if (degree <= 0 || x == 0.0) {
        return degree < 0 ? 0.0 : 1.0;
    }
    float p = 1.0;
    float q = 1.0 - x;
    for (int k = 1; k < degree && !vk_isnan(q); k++) {
        float next = ((2.0 * float(k) + (1.0 - x)) * q - float(k) * p) / (float(k) + 1.0);
        p = q;
        q = next;
    }
    return q;
}

float vk_legendre_p(float x, float n) {
    int degree = vk_degree(n);
    if (degree <= 0) {
        return degree < 0 ? 0.0 : 1.0;
    }
    if (vk_abs(x) == 1.0) {
        return x > 0.0 || (degree & 1) == 0 ? 1.0 : -1.0;
    }
    float p = 1.0;
    float q = x;
    for (int k = 1; k < degree && !vk_isnan(q); k++) {
        float next = ((2.0 * float(k) + 1.0) * x * q - float(k) * p) / (float(k) + 1.0);
        p = q;
        q = next;
    }
    return q;
}
