// Exact remainders of floats, by long division of the mantissas: a quotient of floats may have 277 bits, of which no float
// division keeps more than 24.

// |x| mod |y| for finite x and finite y != 0.
float vk_fmod_magnitude(float x, float y) {
    uint ux = floatBitsToUint(x) & 0x7fffffffu;
    uint uy = floatBitsToUint(y) & 0x7fffffffu;
    if (ux < uy) {
        return uintBitsToFloat(ux);
    }
    // Each is mantissa * 2^(exponent - 150); subnormals have exponent 1 and no hidden bit.
    int ex = max(int(ux >> 23), 1);
    int ey = max(int(uy >> 23), 1);
    uint64_t mx = uint64_t((ux & 0x007fffffu) | (ux >= 0x00800000u ? 0x00800000u : 0u));
    uint64_t my = uint64_t((uy & 0x007fffffu) | (uy >= 0x00800000u ? 0x00800000u : 0u));
    int steps = ex - ey;
    while (steps > 0) {
        int shift = min(steps, 39);
        mx = (mx << shift) % my;
        steps -= shift;
    }
    uint rest = uint(mx % my);
    if (rest == 0u) {
        return 0.0;
    }
    int shift = min(23 - findMSB(rest), ey - 1);
    rest <<= shift;
    return uintBitsToFloat(rest >= 0x00800000u ? (rest & 0x007fffffu) | (uint(ey - shift) << 23) : rest);
}

// x - trunc(x / y) * y, exactly, with the sign of x (C, torch.fmod).
float vk_fmod(float x, float y) {
    if (!vk_isfinite(x) || vk_isnan(y) || (floatBitsToUint(y) & 0x7fffffffu) == 0u) {
        return VK_NAN;
    }
    return vk_isinf(y) ? x : vk_copysign(vk_fmod_magnitude(x, y), x);
}

// Whether remainder r has the other sign than divisor y. Tested on bits: a device may take a subnormal for zero.
bool vk_remainder_crosses(float r, float y) {
    return (floatBitsToUint(r) & 0x7fffffffu) != 0u && vk_signbit(r) != vk_signbit(y);
}

// x - floor(x / y) * y with the sign of y (Python, torch.remainder).
float vk_remainder(float x, float y) {
    float r = vk_fmod(x, y);
    return vk_remainder_crosses(r, y) ? r + y : r;
}

// floor(x / y) as Python has it: from the exact remainder, so that a rounded quotient cannot step over an integer. Not an
// overload of vk_floordiv, which index arithmetic asks for and which is to stay short.
float vk_div_floor(float x, float y) {
    if (y == 0.0) {
        return x / y;
    }
    float r = vk_fmod(x, y);
    precise float multiple = x - r;
    precise float q = vk_div_rn(multiple, y);
    if (vk_remainder_crosses(r, y)) {
        q = q - 1.0;
    }
    if (q == 0.0) {
        return vk_copysign(0.0, x / y);
    }
    precise float whole = floor(q);
    return q - whole > 0.5 ? whole + 1.0 : whole;
}
