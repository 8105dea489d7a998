// Bessel functions of orders 0 and 1. All polynomials are minimax fits of our own. Below 8 the zeros of J are divided out, so
// that J keeps its relative precision near the first two; Y below 4 is its regular part plus 2/pi log(x) J; from 8 on both
// are modulus and phase (Abramowitz and Stegun 9.2.17-31). K below 2 is its regular part minus log(x) I.

// J0 and Y0 for x >= 8: the modulus times the cosine and sine of x - pi/4 plus the phase.
void vk_bessel_0_far(float x, out float j, out float y) {
    float v = 8.0 / x;
    float q = v * v;
    float m = 2.006691773e-07;
    m = m * q - 1.963773684e-06;
    m = m * q + 2.523775765e-05;
    m = m * q - 9.765584837e-04;
    m = m * q + 1.000000000e+00;
    float p = -8.948459396e-08;
    p = p * q + 7.213254207e-07;
    p = p * q - 6.376574220e-06;
    p = p * q + 1.271543733e-04;
    p = p * q - 1.562500000e-02;
    int quadrant;
    float r = vk_trig_reduce(x, quadrant);
    precise float angle = r + (p * v - 0.785398163);
    float s = vk_sin(angle);
    float c = vk_cos(angle);
    float scale = m * sqrt(0.636619772 / x);
    j = scale * ((quadrant & 1) == 0 ? c : s);
    y = scale * ((quadrant & 1) == 0 ? s : c);
    j = ((quadrant + 1) & 2) == 0 ? j : -j;
    y = (quadrant & 2) == 0 ? y : -y;
}

// J0(x) for 0 <= x < 8
float vk_bessel_j0_near(float x) {
    if (x < 4.0) {
        float s = x * x;
        float u = s * 0.125 - 1.0;
        float p = 1.570507102e-08;
        p = p * u - 4.939564633e-07;
        p = p * u + 1.167211758e-05;
        p = p * u - 2.006030991e-04;
        p = p * u + 2.349675167e-03;
        p = p * u - 1.703010686e-02;
        p = p * u + 6.466007978e-02;
        p = p * u - 8.866241574e-02;
        precise float gap = (x - 2.404825449e+00) - 1.087059046e-07;
        return p * gap * (x + 2.404825449e+00);
    }
    float u = 0.5 * x - 3.0;
    float p = -2.594507350e-05;
    p = p * u + 8.899009845e-05;
    p = p * u + 6.451442605e-04;
    p = p * u - 2.070722170e-03;
    p = p * u - 9.292664938e-03;
    p = p * u + 2.704896219e-02;
    p = p * u + 6.772010028e-02;
    p = p * u - 1.737198085e-01;
    p = p * u - 1.550731957e-01;
    p = p * u + 3.138953447e-01;
    precise float gap = (x - 5.520078182e+00) - -7.193414833e-08;
    return p * gap;
}

float vk_bessel_j0(float x) {
    float ax = vk_abs(x);
    if (!vk_isfinite(x)) {
        return VK_NAN;
    }
    float j;
    if (ax < 8.0) {
        j = vk_bessel_j0_near(ax);
    } else {
        float y;
        vk_bessel_0_far(ax, j, y);
    }
    return j;
}

float vk_bessel_y0(float x) {
    if (x == 0.0) {
        return -VK_INF;
    }
    if (!(x > 0.0) || vk_isinf(x)) {
        return VK_NAN;
    }
    if (x < 4.0) {
        float u = x * x * 0.125 - 1.0;
        float p = -2.251996278e-07;
        p = p * u + 6.675483746e-06;
        p = p * u - 1.482138614e-04;
        p = p * u + 2.351694973e-03;
        p = p * u - 2.466011606e-02;
        p = p * u + 1.503964961e-01;
        p = p * u - 4.036971033e-01;
        p = p * u + 5.092768744e-02;
        p = p * u + 5.583839417e-01;
        return p + 0.636619772 * (vk_log(x) * vk_bessel_j0_near(x));
    }
    if (x < 8.0) {
        float u = 0.5 * x - 3.0;
        float p = 2.932407006e-05;
        p = p * u + 2.672757837e-04;
        p = p * u - 8.838082431e-04;
        p = p * u - 5.428021774e-03;
        p = p * u + 1.475515403e-02;
        p = p * u + 5.979602039e-02;
        p = p * u - 1.404681355e-01;
        p = p * u - 2.844247520e-01;
        p = p * u + 5.180525184e-01;
        p = p * u + 3.500205874e-01;
        p = p * u - 2.881946862e-01;
        return p;
    }
    float j;
    float y;
    vk_bessel_0_far(x, j, y);
    return y;
}

// J1 and Y1 for x >= 8: the modulus times the cosine and sine of x - 3 pi/4 plus the phase.
void vk_bessel_1_far(float x, out float j, out float y) {
    float v = 8.0 / x;
    float q = v * v;
    float m = -2.743118159e-07;
    m = m * q + 2.935687689e-06;
    m = m * q - 4.716264448e-05;
    m = m * q + 2.929682378e-03;
    m = m * q + 1.000000000e+00;
    float p = 1.210444935e-07;
    p = p * q - 1.054247832e-06;
    p = p * q + 1.129478824e-05;
    p = p * q - 3.204317763e-04;
    p = p * q + 4.687500000e-02;
    int quadrant;
    float r = vk_trig_reduce(x, quadrant);
    precise float angle = r + (p * v - 0.785398163);
    quadrant -= 1;  // order 1 lags by a quarter turn more
    float s = vk_sin(angle);
    float c = vk_cos(angle);
    float scale = m * sqrt(0.636619772 / x);
    j = scale * ((quadrant & 1) == 0 ? c : s);
    y = scale * ((quadrant & 1) == 0 ? s : c);
    j = ((quadrant + 1) & 2) == 0 ? j : -j;
    y = (quadrant & 2) == 0 ? y : -y;
}

// J1(x) for 0 <= x < 8
float vk_bessel_j1_near(float x) {
    if (x < 4.0) {
        float s = x * x;
        float u = s * 0.125 - 1.0;
        float p = 8.729739709e-10;
        p = p * u - 3.075001231e-08;
        p = p * u + 8.297441809e-07;
        p = p * u - 1.660976704e-05;
        p = p * u + 2.328383125e-04;
        p = p * u - 2.099610167e-03;
        p = p * u + 1.053056400e-02;
        p = p * u - 2.117489092e-02;
        precise float gap = (x - 3.831706047e+00) - -7.685059315e-08;
        return x * p * gap * (x + 3.831706047e+00);
    }
    float u = 0.5 * x - 3.0;
    float p = 1.403068291e-05;
    p = p * u + 1.352865802e-04;
    p = p * u - 3.331061453e-04;
    p = p * u - 2.832575934e-03;
    p = p * u + 5.287738051e-03;
    p = p * u + 3.205256537e-02;
    p = p * u - 4.577687010e-02;
    p = p * u - 1.716666669e-01;
    p = p * u + 1.490336061e-01;
    p = p * u + 2.724374533e-01;
    precise float gap = (x - 7.015586853e+00) - -1.832117250e-07;
    return p * gap;
}

float vk_bessel_j1(float x) {
    float ax = vk_abs(x);
    if (!vk_isfinite(x)) {
        return VK_NAN;
    }
    float j;
    if (ax < 8.0) {
        j = vk_bessel_j1_near(ax);
    } else {
        float y;
        vk_bessel_1_far(ax, j, y);
    }
    return x < 0.0 ? -j : j;
}

float vk_bessel_y1(float x) {
    if (x == 0.0) {
        return -VK_INF;
    }
    if (!(x > 0.0) || vk_isinf(x)) {
        return VK_NAN;
    }
    if (x < 4.0) {
        float u = x * x * 0.125 - 1.0;
        float p = -1.306774156e-08;
        p = p * u + 4.401362901e-07;
        p = p * u - 1.133733349e-05;
        p = p * u + 2.146557963e-04;
        p = p * u - 2.806317061e-03;
        p = p * u + 2.306634001e-02;
        p = p * u - 1.007763892e-01;
        p = p * u + 1.516679525e-01;
        p = p * u + 8.248634636e-02;
        return x * p + 0.636619772 * (vk_log(x) * vk_bessel_j1_near(x) - 1.0 / x);
    }
    if (x < 8.0) {
        float u = 0.5 * x - 3.0;
        float p = 4.775985872e-05;
        p = p * u - 1.464166853e-04;
        p = p * u - 1.310022199e-03;
        p = p * u + 3.534833901e-03;
        p = p * u + 1.908134483e-02;
        p = p * u - 4.426520690e-02;
        p = p * u - 1.495160013e-01;
        p = p * u + 2.809362113e-01;
        p = p * u + 4.266398847e-01;
        p = p * u - 5.180525184e-01;
        p = p * u - 1.750103384e-01;
        return p;
    }
    float j;
    float y;
    vk_bessel_1_far(x, j, y);
    return y;
}

// I0(x) for 0 <= x < 7.75
float vk_i0_near(float x) {
    float s = x * x;
    float p = 4.339205830e-25;
    p = p * s + 1.208432923e-22;
    p = p * s + 7.504945074e-20;
    p = p * s + 2.881919753e-17;
    p = p * s + 9.391587070e-15;
    p = p * s + 2.402666607e-12;
    p = p * s + 4.709526102e-10;
    p = p * s + 6.781681350e-08;
    p = p * s + 6.781684078e-06;
    p = p * s + 4.340277810e-04;
    p = p * s + 1.562500000e-02;
    p = p * s + 2.500000000e-01;
    p = p * s + 1.000000000e+00;
    return p;
}

// I0(x) e^-x for x >= 7.75
float vk_i0e_far(float x) {
    float v = 1.0 / x;
    float p = 1.913708687e+00;
    p = p * v - 3.354218006e-01;
    p = p * v + 8.896567672e-02;
    p = p * v + 2.702474222e-02;
    p = p * v + 2.810077928e-02;
    p = p * v + 4.986736178e-02;
    p = p * v + 3.989422917e-01;
    return p / sqrt(x);
}

float vk_i0e(float x) {
    float ax = vk_abs(x);
    if (vk_isnan(x)) {
        return x;
    }
    float y = ax < 7.75 ? vk_i0_near(ax) * vk_exp(-ax) : vk_i0e_far(ax);
    return y;
}

float vk_i0(float x) {
    float ax = vk_abs(x);
    if (vk_isnan(x)) {
        return x;
    }
    float y;
    if (ax < 7.75) {
        y = vk_i0_near(ax);
    } else {
        // In two factors: I0 is finite for a while after e^x is not.
        float e = vk_exp(0.5 * ax);
        // In this order: e * e would be infinite.
        precise float part = e * vk_i0e_far(ax);
        precise float whole = part * e;
        y = vk_isinf(e) ? e : whole;
    }
    return y;
}

// K0(x) e^x for x >= 2
float vk_k0e_far(float x) {
    float u = 4.0 / x - 1.0;
    float p = -4.536341862e-07;
    p = p * u + 1.097817517e-06;
    p = p * u - 1.962047463e-06;
    p = p * u + 6.658173334e-06;
    p = p * u - 2.485382902e-05;
    p = p * u + 9.969007078e-05;
    p = p * u - 4.797441070e-04;
    p = p * u + 3.032875014e-03;
    p = p * u - 3.107146360e-02;
    p = p * u + 1.218595386e+00;
    return p / sqrt(x);
}

// K0(x) for 0 < x < 2
float vk_k0_near(float x) {
    float s = x * x;
    float p = 1.302838504e-09;
    p = p * s + 1.621850600e-07;
    p = p * s + 1.491616149e-05;
    p = p * s + 8.460330428e-04;
    p = p * s + 2.524893172e-02;
    p = p * s + 2.789828777e-01;
    p = p * s + 1.159315184e-01;
    return p - vk_log(x) * vk_i0_near(x);
}

float vk_k0(float x) {
    if (!(x > 0.0)) {
        return x == 0.0 ? VK_INF : VK_NAN;
    }
    return x < 2.0 ? vk_k0_near(x) : vk_exp(-x) * vk_k0e_far(x);
}

float vk_k0e(float x) {
    if (!(x > 0.0)) {
        return x == 0.0 ? VK_INF : VK_NAN;
    }
    return x < 2.0 ? vk_exp(x) * vk_k0_near(x) : vk_k0e_far(x);
}

// I1(x) for 0 <= x < 7.75
float vk_i1_near(float x) {
    float s = x * x;
    float p = 1.629923756e-26;
    p = p * s + 5.164627381e-24;
    p = p * s + 3.392666742e-21;
    p = p * s + 1.442494214e-18;
    p = p * s + 5.216756279e-16;
    p = p * s + 1.501693328e-13;
    p = p * s + 3.363941417e-11;
    p = p * s + 5.651402013e-09;
    p = p * s + 6.781684192e-07;
    p = p * s + 5.425347263e-05;
    p = p * s + 2.604166744e-03;
    p = p * s + 6.250000000e-02;
    p = p * s + 5.000000000e-01;
    return x * p;
}

// I1(x) e^-x for x >= 7.75
float vk_i1e_far(float x) {
    float v = 1.0 / x;
    float p = -2.177970648e+00;
    p = p * v + 3.730620742e-01;
    p = p * v - 1.079955846e-01;
    p = p * v - 3.838711604e-02;
    p = p * v - 4.680905864e-02;
    p = p * v - 1.496028602e-01;
    p = p * v + 3.989422917e-01;
    return p / sqrt(x);
}

float vk_i1e(float x) {
    float ax = vk_abs(x);
    if (vk_isnan(x)) {
        return x;
    }
    float y = ax < 7.75 ? vk_i1_near(ax) * vk_exp(-ax) : vk_i1e_far(ax);
    return x < 0.0 ? -y : y;
}

float vk_i1(float x) {
    float ax = vk_abs(x);
    if (vk_isnan(x)) {
        return x;
    }
    float y;
    if (ax < 7.75) {
        y = vk_i1_near(ax);
    } else {
        // In two factors: I1 is finite for a while after e^x is not.
        float e = vk_exp(0.5 * ax);
        // In this order: e * e would be infinite.
        precise float part = e * vk_i1e_far(ax);
        precise float whole = part * e;
        y = vk_isinf(e) ? e : whole;
    }
    return x < 0.0 ? -y : y;
}

// K1(x) e^x for x >= 2
float vk_k1e_far(float x) {
    float u = 4.0 / x - 1.0;
    float p = 5.496136737e-07;
    p = p * u - 1.323482479e-06;
    p = p * u + 2.437646799e-06;
    p = p * u - 8.559311937e-06;
    p = p * u + 3.300125172e-05;
    p = p * u - 1.397407759e-04;
    p = p * u + 7.356897113e-04;
    p = p * u - 5.566710606e-03;
    p = p * u + 1.033497378e-01;
    p = p * u + 1.363151908e+00;
    return p / sqrt(x);
}

// K1(x) for 0 < x < 2
float vk_k1_near(float x) {
    float s = x * x;
    float p = -9.473144491e-11;
    p = p * s - 1.399674332e-08;
    p = p * s - 1.559380394e-06;
    p = p * s - 1.125359413e-04;
    p = p * s - 4.642182961e-03;
    p = p * s - 8.537071943e-02;
    p = p * s - 3.079657555e-01;
    return (1.0 / x + x * p) + vk_log(x) * vk_i1_near(x);
}

float vk_k1(float x) {
    if (!(x > 0.0)) {
        return x == 0.0 ? VK_INF : VK_NAN;
    }
    return x < 2.0 ? vk_k1_near(x) : vk_exp(-x) * vk_k1e_far(x);
}

float vk_k1e(float x) {
    if (!(x > 0.0)) {
        return x == 0.0 ? VK_INF : VK_NAN;
    }
    return x < 2.0 ? vk_exp(x) * vk_k1_near(x) : vk_k1e_far(x);
}

// sin(x) / x
float vk_spherical_bessel_j0(float x) {
    if (vk_isinf(x)) {
        return 0.0;
    }
    if (vk_abs(x) < 0.5) {
        float s = x * x;
        return 1.0 + s * (-1.666666667e-01 + s * (8.333333333e-03 + s * (-1.984126984e-04 + s * 2.755731922e-06)));
    }
    return vk_sin(x) / x;
}
