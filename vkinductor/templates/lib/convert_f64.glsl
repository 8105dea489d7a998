// Double to the narrower floats and to integers. A double is first cut to a float "to odd" (the lowest bit is set when
// anything was lost), so that the second rounding, to 16 bits, gives what one rounding would have given: S. Boldo and
// G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008.

float vk_f64_to_f32_odd(double x) {
    uvec2 u = unpackDouble2x32(x);
    uint sign = u.y & 0x80000000u;
    uint high = u.y & 0x7fffffffu;
    if (high >= 0x7ff00000u) {
        bool nan = high > 0x7ff00000u || u.x != 0u;
        return uintBitsToFloat(sign | 0x7f800000u | (nan ? 0x00400000u : 0u));
    }
    int exponent = int(high >> 20) - 1023;
    uint mantissa = ((high & 0x000fffffu) << 3) | (u.x >> 29);
    bool lost = (u.x & 0x1fffffffu) != 0u;
    if (exponent > 127) {
        return uintBitsToFloat(sign | 0x7f7fffffu);
    }
    if (exponent >= -126) {
        return uintBitsToFloat(sign | (uint(exponent + 127) << 23) | mantissa | uint(lost));
    }
    int shift = -126 - exponent;
    if (shift > 24) {
        return uintBitsToFloat(sign | uint(high != 0u || u.x != 0u));
    }
    mantissa |= 0x00800000u;
    lost = lost || (mantissa & ((1u << shift) - 1u)) != 0u;
    return uintBitsToFloat(sign | (mantissa >> shift) | uint(lost));
}

// To nearest even, subnormals included.
float vk_f64_to_f32(double x) {
    uvec2 u = unpackDouble2x32(x);
    uint high = u.y & 0x7fffffffu;
    uint sign = u.y & 0x80000000u;
    int exponent = int(high >> 20) - 1023;
    if (high >= 0x7ff00000u) {
        return vk_f64_to_f32_odd(x);
    }
    if (exponent > 127) {
        return uintBitsToFloat(sign | 0x7f800000u);
    }
    if (exponent < -150) {
        return uintBitsToFloat(sign);
    }
    // 24 bits are kept of 53, fewer below 2^-126.
    uint64_t mantissa = (uint64_t(high & 0x000fffffu | 0x00100000u) << 32) | uint64_t(u.x);
    int shift = 29 + max(0, -126 - exponent);
    uint kept = uint(mantissa >> shift);
    uint64_t rest = mantissa & ((uint64_t(1) << shift) - uint64_t(1));
    uint64_t half_unit = uint64_t(1) << (shift - 1);
    kept += uint(rest > half_unit || (rest == half_unit && (kept & 1u) == 1u));
    // The hidden bit carries into the exponent field by addition, as does a mantissa that rounds up to 2.
    uint field = exponent < -126 ? 0u : uint(exponent + 126) << 23;
    return uintBitsToFloat(sign | (field + kept));
}

float vk_round_f16_f64(double x) {
    return vk_round_f16(vk_f64_to_f32_odd(x));
}

#define vk_f64_to_f16(x) float16_t(vk_round_f16_f64(x))

uint vk_f64_to_bf16_bits(double x) {
    return vk_f32_to_bf16_bits(vk_f64_to_f32_odd(x));
}

#define vk_f64_to_bf16(x) uint16_t(vk_f64_to_bf16_bits(x))

int vk_f64_to_i32(double x) {
    return x > -2147483649.0lf && x < 2147483648.0lf ? int(x) : int(0x80000000u);
}

int64_t vk_f64_to_i64(double x) {
    bool fits = x >= -9223372036854775808.0lf && x < 9223372036854775808.0lf;
    return fits ? int64_t(x) : int64_t(0x8000000000000000ul);
}

uint vk_f64_to_u32(double x) {
    return uint(vk_f64_to_i64(x));
}

uint64_t vk_f64_to_u64(double x) {
    if (x >= 9223372036854775808.0lf && x < 18446744073709551616.0lf) {
        return uint64_t(x);
    }
    return uint64_t(vk_f64_to_i64(x));
}

int vk_f64_to_i8(double x) {
    return vk_wrap_i8(vk_f64_to_i32(x));
}

int vk_f64_to_u8(double x) {
    return vk_wrap_u8(int(vk_f64_to_i64(x)));
}

int vk_f64_to_i16(double x) {
    return vk_wrap_i16(vk_f64_to_i32(x));
}

int vk_f64_to_u16(double x) {
    return vk_wrap_u16(vk_f64_to_i32(x));
}
