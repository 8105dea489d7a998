// Division. Vulkan promises 2.5 units in the last place for divisors up to 2^126 and nothing beyond (Precision and Operation
// of SPIR-V Instructions); an H100 answers 0 there.

// x / y for divisors of any size: scaling by a power of two changes no quotient that is a normal number. With HALF_RESULTS
// by the reciprocal, which a row whose elements are divided by one number has to find once.
float vk_div(float x, float y) {
    // A branch that is hardly taken: half the instructions of a choice of factors.
    if (vk_abs(y) > 1.15292150e+18) {
        x *= 8.67361738e-19;
        y *= 8.67361738e-19;
    }
#ifdef HALF_RESULTS
    return x * (1.0 / y);
#else
    return x / y;
#endif
}

// x - q * y to about 46 bits: each factor is cut in two halves of 12 bits, whose products are exact. fma() need not be fused.
float vk_div_rest(float x, float q, float y) {
    float qh = uintBitsToFloat(floatBitsToUint(q) & 0xfffff000u);
    float yh = uintBitsToFloat(floatBitsToUint(y) & 0xfffff000u);
    precise float ql = q - qh;
    precise float yl = y - yh;
    precise float rest = x - qh * yh;
    rest = rest - qh * yl;
    rest = rest - ql * yh;
    rest = rest - ql * yl;
    return rest;
}

// x / y rounded to nearest, whatever the device's division (exact quotients are exact; within 2^-20 units of a tie either
// neighbour): what whole quotients are taken from. Both are brought near
// 1 first, where no product of halves is subnormal; a quotient that is subnormal itself is the device's own.
float vk_div_rn(float x, float y) {
    float ay = vk_abs(y);
    float scale = ay > 1.15292150e+18 ? 8.67361738e-19 : (ay < 8.67361738e-19 ? 1.15292150e+18 : 1.0);
    float a = x * scale;
    float b = y * scale;
    bool small = vk_abs(a) < 1.0;
    precise float up = small ? a * 1.15292150e+18 : a;
    precise float q = up / b;
    if (!vk_isfinite(q) || !vk_isfinite(b)) {
        return a / b;
    }
    precise float better = q + vk_div_rest(up, q, b) / b;
    precise float down = small ? better * 8.67361738e-19 : better;
    return vk_abs(down) < 1.17549449e-38 ? a / b : down;
}
