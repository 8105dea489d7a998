// The forms for doubles of polynomials.glsl.

int vk_degree_f64(double n) {
    return n > -1.0lf ? int(min(n, 2147483647.0lf)) : -1;
}

// The Chebyshev recurrence from p[0] = 1 and p[1] = q; it ends early at the first NaN.
double vk_chebyshev_f64(double x, double q, int n) {
    double p = 1.0lf;
    if (n <= 0) {
        return n < 0 ? 0.0lf : p;
    }
    for (int k = 1; k < n && !vk_isnan_f64(q); k++) {
        double next = 2.0lf * x * q - p;
        p = q;
        q = next;
    }
    return q;
}

double vk_chebyshev_t_f64(double x, double n) {
    int degree = vk_degree_f64(n);
    if (vk_abs_f64(x) == 1.0lf && degree >= 0) {
        return x > 0.0lf || (degree & 1) == 0 ? 1.0lf : -1.0lf;
    }
    if (degree > 6 && vk_abs_f64(x) < 1.0lf) {
        return vk_cos_f64(double(degree) * vk_acos_f64(x));
    }
    return vk_chebyshev_f64(x, x, degree);
}

double vk_chebyshev_u_f64(double x, double n) {
    int degree = vk_degree_f64(n);
    if (vk_abs_f64(x) == 1.0lf && degree >= 0) {
        double size = double(degree) + 1.0lf;
        return x > 0.0lf || (degree & 1) == 0 ? size : -size;
    }
    if (degree > 8 && vk_abs_f64(x) < 1.0lf) {
        double t = vk_acos_f64(x);
        return vk_sin_f64((double(degree) + 1.0lf) * t) / vk_sin_f64(t);
    }
    return vk_chebyshev_f64(x, 2.0lf * x, degree);
}

double vk_chebyshev_v_f64(double x, double n) {
    int degree = vk_degree_f64(n);
    if (vk_abs_f64(x) == 1.0lf && degree >= 0) {
        double size = 2.0lf * double(degree) + 1.0lf;
        return x > 0.0lf ? 1.0lf : (degree & 1) == 0 ? size : -size;
    }
    if (degree > 8 && vk_abs_f64(x) < 1.0lf) {
        double t = vk_acos_f64(x);
        return vk_cos_f64((double(degree) + 0.5lf) * t) / vk_cos_f64(0.5lf * t);
    }
    return vk_chebyshev_f64(x, 2.0lf * x - 1.0lf, degree);
}

double vk_chebyshev_w_f64(double x, double n) {
    int degree = vk_degree_f64(n);
    if (vk_abs_f64(x) == 1.0lf && degree >= 0) {
        return x > 0.0lf ? 2.0lf * double(degree) + 1.0lf : (degree & 1) == 0 ? 1.0lf : -1.0lf;
    }
    if (degree > 8 && vk_abs_f64(x) < 1.0lf) {
        double t = vk_acos_f64(x);
        return vk_sin_f64((double(degree) + 0.5lf) * t) / vk_sin_f64(0.5lf * t);
    }
    return vk_chebyshev_f64(x, 2.0lf * x + 1.0lf, degree);
}

// The shifted ones live on [0, 1].
double vk_shifted_chebyshev_t_f64(double x, double n) {
    return vk_chebyshev_t_f64(2.0lf * x - 1.0lf, n);
}

double vk_shifted_chebyshev_u_f64(double x, double n) {
    return vk_chebyshev_u_f64(2.0lf * x - 1.0lf, n);
}

double vk_shifted_chebyshev_v_f64(double x, double n) {
    return vk_chebyshev_v_f64(2.0lf * x - 1.0lf, n);
}

double vk_shifted_chebyshev_w_f64(double x, double n) {
    return vk_chebyshev_w_f64(2.0lf * x - 1.0lf, n);
}

// Past the degree where the values leave the format torch gives NaN.
double vk_hermite_h_f64(double x, double n) {
    int degree = vk_degree_f64(n);
    if (degree <= 0) {
        return degree < 0 ? 0.0lf : 1.0lf;
    }
    if (degree > 512) {
        return VK_NAN_F64;
    }
    double p = 1.0lf;
    double q = 2.0lf * x;
    for (int k = 1; k < degree; k++) {
        double next = 2.0lf * (x * q - double(k) * p);
        p = q;
        q = next;
    }
    return q;
}

double vk_hermite_he_f64(double x, double n) {
    int degree = vk_degree_f64(n);
    if (degree <= 0) {
        return degree < 0 ? 0.0lf : 1.0lf;
    }
    if (degree > 512) {
        return VK_NAN_F64;
    }
    double p = 1.0lf;
    double q = x;
    for (int k = 1; k < degree; k++) {
        double next = x * q - double(k) * p;
        p = q;
        q = next;
    }
    return q;
}

double vk_laguerre_l_f64(double x, double n) {
    int degree = vk_degree_f64(n);
    if (degree <= 0 || x == 0.0lf) {
        return degree < 0 ? 0.0lf : 1.0lf;
    }
    double p = 1.0lf;
    double q = 1.0lf - x;
    for (int k = 1; k < degree && !vk_isnan_f64(q); k++) {
        double next = ((2.0lf * double(k) + (1.0lf - x)) * q - double(k) * p) / (double(k) + 1.0lf);
        p = q;
        q = next;
    }
    return q;
}

double vk_legendre_p_f64(double x, double n) {
    int degree = vk_degree_f64(n);
    if (degree <= 0) {
        return degree < 0 ? 0.0lf : 1.0lf;
    }
    if (vk_abs_f64(x) == 1.0lf) {
        return x > 0.0lf || (degree & 1) == 0 ? 1.0lf : -1.0lf;
    }
    double p = 1.0lf;
    double q = x;
    for (int k = 1; k < degree && !vk_isnan_f64(q); k++) {
        double next = ((2.0lf * double(k) + 1.0lf) * x * q - double(k) * p) / (double(k) + 1.0lf);
        p = q;
        q = next;
    }
    return q;
}
