// Between registers (float, int) and storage types. Halves and bfloat16 are rounded on integers: Vulkan leaves the
// rounding of a narrowing conversion to the driver, unless a device with 16-bit arithmetic was asked to round halves to
// nearest even (HALF_RTE), or has bfloat16 as a type (NATIVE_BF16, its name). No function here has a 16-bit parameter or result, because those would
// ask a device for 16-bit arithmetic where 16-bit storage is enough; the names that give a 16-bit type are macros.

// A bfloat16 is the upper half of a float. A uint16_t converts to the parameter's type by itself.
float vk_bf16_to_f32(uint bits) {
    return uintBitsToFloat(bits << 16);
}

// A float whose upper half is the bfloat16 nearest to x, ties to even: one NaN for all, overflow gives infinity.
uint vk_near_bf16(float x) {
    uint u = floatBitsToUint(x);
    uint near = u + 0x7fffu + ((u >> 16) & 1u);
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : near;
}

// Its bits.
uint vk_f32_to_bf16_bits(float x) {
#ifdef NATIVE_BF16
    return uint(bfloat16BitsToUintEXT(NATIVE_BF16(x)));
#else
    return vk_near_bf16(x) >> 16;
#endif
}

#define vk_f32_to_bf16(x) uint16_t(vk_f32_to_bf16_bits(x))

// Two bfloat16 as one word, a in its lower part: an instruction for both where the device has the type, else six each.
uint vk_f32_to_bf16_pair(float a, float b) {
#ifdef NATIVE_BF16
    return packUint2x16(bfloat16BitsToUintEXT(bf16vec2(NATIVE_BF16(a), NATIVE_BF16(b))));
#else
    return vk_near_bf16(a) >> 16 | vk_near_bf16(b) & 0xffff0000u;
#endif
}

// Two of which none is NaN.
uint vk_pair_of_numbers(float a, float b) {
    uint u = floatBitsToUint(a), v = floatBitsToUint(b);
    return u + 0x7fffu + ((u >> 16) & 1u) >> 16 | v + 0x7fffu + ((v >> 16) & 1u) & 0xffff0000u;
}

// Eight as four words. Whether one is NaN is asked of their sum, which then is NaN too, instead of each: its integer
// arithmetic is what bounds kernels of rows.
uvec4 vk_f32_to_bf16_words(float a, float b, float c, float d, float e, float f, float g, float h) {
#ifdef NATIVE_BF16
    return uvec4(vk_f32_to_bf16_pair(a, b), vk_f32_to_bf16_pair(c, d), vk_f32_to_bf16_pair(e, f), vk_f32_to_bf16_pair(g, h));
#else
    uvec4 words = uvec4(vk_pair_of_numbers(a, b), vk_pair_of_numbers(c, d), vk_pair_of_numbers(e, f), vk_pair_of_numbers(g, h));
    float sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
    if ((floatBitsToUint(sum) & 0x7fffffffu) > 0x7f800000u) {
        words = uvec4(vk_f32_to_bf16_pair(a, b), vk_f32_to_bf16_pair(c, d), vk_f32_to_bf16_pair(e, f), vk_f32_to_bf16_pair(g, h));
    }
    return words;
#endif
}

// The float nearest to x that a bfloat16 can hold.
float vk_round_bf16(float x) {
    return uintBitsToFloat(vk_f32_to_bf16_bits(x) << 16);
}

// The same in two instructions, for 0, NaN, and from 2^-126 to 2^111 (infinity gives NaN): the sum 65537 x has its last
// bit where the bfloat16's is. Nearly always nearest: a mantissa within 2^-15 of 2 may come out one step lower.
float vk_round_bf16_fma(float x) {
    precise float sum = fma(x, 65536.0, x);
    precise float near = fma(x, -65536.0, sum);
    return near;
}

// The float nearest to x that a half can hold, ties to even: infinity from 65520 on, multiples of 2^-24 below 2^-14.
float vk_round_f16(float x) {
    uint u = floatBitsToUint(x);
    uint magnitude = u & 0x7fffffffu;
    uint sign = u & 0x80000000u;
    if (magnitude >= 0x477ff000u) {
        return magnitude > 0x7f800000u ? x : uintBitsToFloat(sign | 0x7f800000u);
    }
    if (magnitude >= 0x38800000u) {
        magnitude += 0x0fffu + ((magnitude >> 13) & 1u);
        return uintBitsToFloat(sign | (magnitude & 0xffffe000u));
    }
    // 2^-24 is the unit here: count how many, rounding half to even. Below 2^-26 the count is 0.
    int shift = min(126 - int(magnitude >> 23), 31);
    uint mantissa = (magnitude & 0x007fffffu) | 0x00800000u;
    uint count = mantissa >> shift;
    uint rest = mantissa & ((1u << shift) - 1u);
    uint half_unit = 1u << (shift - 1);
    count += uint(rest > half_unit || (rest == half_unit && (count & 1u) == 1u));
    return uintBitsToFloat(sign | floatBitsToUint(float(count) * 5.9604644775390625e-08));
}

// What converts to the half nearest to x. A value that stays a float is never rounded by a conversion to a half and back:
// NVIDIA's compiler drops it.
float vk_before_f16(float x) {
#ifdef HALF_RTE
    return x;
#else
    return vk_round_f16(x);
#endif
}

// A half: without HALF_RTE the conversion is exact, whatever way the driver rounds.
#define vk_f32_to_f16(x) float16_t(vk_before_f16(x))

// Two halves as one word, a in its lower part.
uint vk_f32_to_f16_pair(float a, float b) {
#ifdef HALF_RTE
    return packFloat2x16(f16vec2(float16_t(a), float16_t(b)));
#else
    return packHalf2x16(vec2(vk_round_f16(a), vk_round_f16(b)));
#endif
}

// The bits of the half nearest to x, for devices that store halves as uint16_t.
uint vk_f32_to_f16_bits(float x) {
    uint u = floatBitsToUint(vk_round_f16(x));
    uint sign = (u >> 16) & 0x8000u;
    uint magnitude = u & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        return sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x0200u | ((magnitude >> 13) & 0x3ffu) : 0u);
    }
    if (magnitude >= 0x38800000u) {
        return sign | ((magnitude - 0x38000000u) >> 13);
    }
    return sign | uint(uintBitsToFloat(magnitude) * 16777216.0);
}

float vk_f16_bits_to_f32(uint bits) {
    uint sign = (bits & 0x8000u) << 16;
    uint magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        return uintBitsToFloat(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    }
    if (magnitude >= 0x0400u) {
        return uintBitsToFloat(sign | ((magnitude << 13) + 0x38000000u));
    }
    return uintBitsToFloat(sign | floatBitsToUint(float(magnitude) * 5.9604644775390625e-08));
}

// Integers wrapped to a narrower width, as a C cast does.
int vk_wrap_i8(int x) {
    return bitfieldExtract(x, 0, 8);
}

int vk_wrap_u8(int x) {
    return x & 0xff;
}

int vk_wrap_i16(int x) {
    return bitfieldExtract(x, 0, 16);
}

int vk_wrap_u16(int x) {
    return x & 0xffff;
}

// Float to integer, towards zero. What does not fit, and NaN, gives the lowest integer, as x86 has it and as torch
// therefore shows on most machines; GLSL leaves it undefined.
int vk_f32_to_i32(float x) {
    return x >= -2147483648.0 && x < 2147483648.0 ? int(x) : int(0x80000000u);
}

int64_t vk_f32_to_i64(float x) {
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? int64_t(x) : int64_t(0x8000000000000000ul);
}

uint vk_f32_to_u32(float x) {
    return uint(vk_f32_to_i64(x));
}

uint64_t vk_f32_to_u64(float x) {
    if (x >= 9223372036854775808.0 && x < 18446744073709551616.0) {
        return uint64_t(x);
    }
    return uint64_t(vk_f32_to_i64(x));
}

// The narrow ones go through a wider integer and wrap: also what x86 does. torch takes 64 bits for uint8, so that all whole
// numbers wrap there.
int vk_f32_to_i8(float x) {
    return vk_wrap_i8(vk_f32_to_i32(x));
}

int vk_f32_to_u8(float x) {
    return vk_wrap_u8(int(vk_f32_to_i64(x)));
}

int vk_f32_to_i16(float x) {
    return vk_wrap_i16(vk_f32_to_i32(x));
}

int vk_f32_to_u16(float x) {
    return vk_wrap_u16(vk_f32_to_i32(x));
}
