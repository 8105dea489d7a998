// Counter-based random numbers: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011, whose constants these are). The counter is the offset, the key the seed. How words become floats and
// normals follows triton.language.random, so that a seed gives the numbers that CUDA Inductor gives.

uvec4 vk_philox_of(uint64_t seed, uvec4 c) {
    uvec2 key = uvec2(uint(seed), uint(seed >> 32));
    for (int i = 0; i < 10; i++) {
        uvec2 low;
        uvec2 high;
        umulExtended(0xd2511f53u, c.x, high.x, low.x);
        umulExtended(0xcd9e8d57u, c.z, high.y, low.y);
        c = uvec4(high.y ^ c.y ^ key.x, low.y, high.x ^ c.w ^ key.y, low.x);
        key += uvec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}

uvec4 vk_philox(uint64_t seed, uint64_t offset) {
    return vk_philox_of(seed, uvec4(uint(offset), uint(offset >> 32), 0u, 0u));
}

// A word as a float in [0, 1).
float vk_uniform(uint word) {
    int x = int(word);
    return float(x < 0 ? -x - 1 : x) * 4.6566127342e-10;
}

// Uniform in [0, 1).
float vk_rand(int64_t seed, int64_t offset) {
    return vk_uniform(vk_philox(uint64_t(seed), uint64_t(offset)).x);
}

// Standard normal, by Box and Muller.
float vk_randn(int64_t seed, int64_t offset) {
    uvec4 words = vk_philox(uint64_t(seed), uint64_t(offset));
    float u = max(vk_uniform(words.x), 1.0e-7);
    return sqrt(-2.0 * vk_log(u)) * vk_cos(6.283185307179586 * vk_uniform(words.y));
}

// Uniform in [low, high); the bias of the remainder is below (high - low) / 2^64.
int64_t vk_randint64(int64_t seed, int64_t offset, int64_t low, int64_t high) {
    uvec4 words = vk_philox(uint64_t(seed), uint64_t(offset));
    uint64_t word = uint64_t(words.x) | (uint64_t(words.y) << 32);
    uint64_t size = uint64_t(high - low);
    return size == uint64_t(0) ? low : low + int64_t(word % size);
}
