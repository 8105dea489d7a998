// Atomic additions at a byte address. Elements narrower than a word are read, changed and swapped with the word
// around them. Floating-point additions without an instruction retry until nobody else wrote in between.

void vk_atomic_add_i32(uint64_t address, int value) {
    atomicAdd(Buffer_int(address).d[0], value);
}

void vk_atomic_add_u32(uint64_t address, uint value) {
    atomicAdd(Buffer_uint(address).d[0], value);
}

// Needs GL_EXT_shader_atomic_float.
void vk_atomic_add_f32_native(uint64_t address, float value) {
    atomicAdd(Buffer_float(address).d[0], value);
}

void vk_atomic_add_f32(uint64_t address, float value) {
    uint seen = Buffer_uint(address).d[0];
    uint expected;
    do {
        expected = seen;
        seen = atomicCompSwap(Buffer_uint(address).d[0], expected, floatBitsToUint(uintBitsToFloat(expected) + value));
    } while (seen != expected);
}

// The 64-bit ones need GL_EXT_shader_atomic_int64.
void vk_atomic_add_i64(uint64_t address, int64_t value) {
    atomicAdd(Buffer_int64_t(address).d[0], value);
}

void vk_atomic_add_u64(uint64_t address, uint64_t value) {
    atomicAdd(Buffer_uint64_t(address).d[0], value);
}

void vk_atomic_add_f64(uint64_t address, double value) {
    uint64_t seen = Buffer_uint64_t(address).d[0];
    uint64_t expected;
    do {
        expected = seen;
        uint64_t desired = packUint2x32(unpackDouble2x32(packDouble2x32(unpackUint2x32(expected)) + value));
        seen = atomicCompSwap(Buffer_uint64_t(address).d[0], expected, desired);
    } while (seen != expected);
}

void vk_atomic_add_f16(uint64_t address, float value) {
    uint64_t word = address & ~uint64_t(3);
    int shift = int(address & uint64_t(2)) * 8;
    uint seen = Buffer_uint(word).d[0];
    uint expected;
    do {
        expected = seen;
        float sum = vk_f16_bits_to_f32((expected >> shift) & 0xffffu) + value;
        uint bits = vk_f32_to_f16_bits(sum);
        uint desired = (expected & ~(0xffffu << shift)) | (bits << shift);
        seen = atomicCompSwap(Buffer_uint(word).d[0], expected, desired);
    } while (seen != expected);
}

void vk_atomic_add_bf16(uint64_t address, float value) {
    uint64_t word = address & ~uint64_t(3);
    int shift = int(address & uint64_t(2)) * 8;
    uint seen = Buffer_uint(word).d[0];
    uint expected;
    do {
        expected = seen;
        float sum = vk_bf16_to_f32((expected >> shift) & 0xffffu) + value;
        uint desired = (expected & ~(0xffffu << shift)) | (vk_f32_to_bf16_bits(sum) << shift);
        seen = atomicCompSwap(Buffer_uint(word).d[0], expected, desired);
    } while (seen != expected);
}

void vk_atomic_add_16(uint64_t address, int value) {
    uint64_t word = address & ~uint64_t(3);
    int shift = int(address & uint64_t(2)) * 8;
    uint seen = Buffer_uint(word).d[0];
    uint expected;
    do {
        expected = seen;
        uint sum = ((expected >> shift) + uint(value)) & 0xffffu;
        seen = atomicCompSwap(Buffer_uint(word).d[0], expected, (expected & ~(0xffffu << shift)) | (sum << shift));
    } while (seen != expected);
}

void vk_atomic_add_8(uint64_t address, int value) {
    uint64_t word = address & ~uint64_t(3);
    int shift = int(address & uint64_t(3)) * 8;
    uint seen = Buffer_uint(word).d[0];
    uint expected;
    do {
        expected = seen;
        uint sum = ((expected >> shift) + uint(value)) & 0xffu;
        seen = atomicCompSwap(Buffer_uint(word).d[0], expected, (expected & ~(0xffu << shift)) | (sum << shift));
    } while (seen != expected);
}

void vk_atomic_or_bool(uint64_t address, bool value) {
    if (value) {
        atomicOr(Buffer_uint(address & ~uint64_t(3)).d[0], 1u << (int(address & uint64_t(3)) * 8));
    }
}
