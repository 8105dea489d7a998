// Pieces of rows in GGUF's block formats, as products read them: vk_chunk_<format>(row, c, q, scale) loads chunk `c` of a row.
// Neighbouring chunks lie side by side. Weight i of a chunk is scale[s].x * q[i] + scale[s].y, s its part of the chunk;
// which weights of the row these are says codegen/quantized/chunks.py. Here q is not exact as in vk_dequantize_<format>, but
// made by few integer instructions, of which a GPU may do half as many as of others (an H200 does): bits of an integer are
// put into the mantissa of a float 2^n, which makes 2^n + integer, and scale[s].y takes 2^n away again, at the cost of some
// of float32's last bits. Where activations are halves (HALF_ACTIVATIONS), 2^n may be 256.

// What low halves of bytes have more than their integer in vk_nibbles.
float vk_low_offset() {
#ifdef HALF_ACTIVATIONS
    return 256.0;
#else
    return 16.0;
#endif
}

// Eight bytes of pairs: that + each low half, 16 + each high one. A shift is for both where the low ones take 256.
void vk_nibbles(uvec2 words, out float q[16]) {
    [[unroll]] for (int i = 0; i < 8; ++i) {
        uint word = words[i >> 2];
        int shift = 8 * (i & 3);
        uint bits = shift > 15 ? word >> (shift - 15) : word << (15 - shift);
        q[i + 8] = uintBitsToFloat((bits & 0x780000u) | 0x41800000u);
#ifdef HALF_ACTIVATIONS
        q[i] = uintBitsToFloat((bits & 0x78000u) | 0x43800000u);
#else
        uint low = shift > 19 ? word >> (shift - 19) : word << (19 - shift);
        q[i] = uintBitsToFloat((low & 0x780000u) | 0x41800000u);
#endif
    }
}

// 32 + the four bits at `shift` of a word + 16 times bit `place` of another.
float vk_five_32(uint word, int shift, uint high, int place) {
    uint bits = shift > 18 ? word >> (shift - 18) : word << (18 - shift);
    uint top = place > 22 ? high >> (place - 22) : high << (22 - place);
    return uintBitsToFloat((bits & 0x3c0000u) | (top & 0x400000u) | 0x42000000u);
}

// 2^bits + the lowest bits of byte b of a word.
float vk_byte_bits(uint word, int b, int bits) {
    int shift = 8 * b + bits - 23;
    uint moved = shift > 0 ? word >> shift : word << -shift;
    return uintBitsToFloat((moved & (((1u << bits) - 1u) << (23 - bits))) | (uint(127 + bits) << 23));
}

// 4 + the two bits at `shift` of a word.
float vk_two_4(uint word, int shift) {
    uint bits = shift > 21 ? word >> (shift - 21) : word << (21 - shift);
    return uintBitsToFloat((bits & 0x600000u) | 0x40800000u);
}

// Bits of fifths: of the weights in low halves from bit 0 of `high`, of the others from bit 16.
void vk_fives(uvec2 words, uint high, out float q[16]) {
    [[unroll]] for (int i = 0; i < 8; ++i) {
        q[i] = vk_five_32(words[i >> 2], 8 * (i & 3), high, i);
        q[i + 8] = vk_five_32(words[i >> 2], 8 * (i & 3) + 4, high, i + 16);
    }
}

void vk_levels(uvec2 words, out float q[16]) {
    [[unroll]] for (int i = 0; i < 8; ++i) {
        q[i] = vk_iq4_level(bitfieldExtract(words[i >> 2], 8 * (i & 3), 4));
        q[i + 8] = vk_iq4_level(bitfieldExtract(words[i >> 2], 8 * (i & 3) + 4, 4));
    }
}

// Two words at a multiple of 2 bytes.
uvec2 vk_block_words(uint64_t address, int i) {
    return uvec2(vk_block_word(address, i), vk_block_word(address, i + 2));
}

// Blocks of 32: half c & 1 of a block.
void vk_chunk_q4_0(uint64_t row, int c, out float q[16], out vec2 scale[2]) {
    uint64_t block = row + uint64_t(uint(c >> 1) * 18u);
    vk_nibbles(vk_block_words(block, 1 + 4 * (c & 1)), q);
    float d = vk_block_half(block);
    scale[0] = vec2(d, -(8.0 + vk_low_offset()) * d);
    scale[1] = vec2(d, -24.0 * d);
}

void vk_chunk_q4_1(uint64_t row, int c, out float q[16], out vec2 scale[2]) {
    Buffer_uint block = Buffer_uint(row + uint64_t(uint(c >> 1) * 20u));
    int word = 1 + 2 * (c & 1);
    vk_nibbles(uvec2(block.d[word], block.d[word + 1]), q);
    vec2 dm = unpackHalf2x16(block.d[0]);
    scale[0] = vec2(dm.x, dm.y - vk_low_offset() * dm.x);
    scale[1] = vec2(dm.x, dm.y - 16.0 * dm.x);
}

void vk_chunk_q5_0(uint64_t row, int c, out float q[16], out vec2 scale[1]) {
    uint64_t block = row + uint64_t(uint(c >> 1) * 22u);
    vk_fives(vk_block_words(block, 3 + 4 * (c & 1)), vk_block_word(block, 1) >> (8 * (c & 1)), q);
    float d = vk_block_half(block);
    scale[0] = vec2(d, -48.0 * d);
}

void vk_chunk_q5_1(uint64_t row, int c, out float q[16], out vec2 scale[1]) {
    Buffer_uvec2 block = Buffer_uvec2(row + uint64_t(uint(c >> 1) * 24u));
    uvec2 head = block.d[0];
    vk_fives(block.d[1 + (c & 1)], head.y >> (8 * (c & 1)), q);
    vec2 dm = unpackHalf2x16(head.x);
    scale[0] = vec2(dm.x, dm.y - 32.0 * dm.x);
}

void vk_chunk_q8_0(uint64_t row, int c, out float q[16], out vec2 scale[1]) {
    uint64_t block = row + uint64_t(uint(c >> 1) * 34u);
    [[unroll]] for (int w = 0; w < 4; ++w) {
        uint bytes = vk_block_word(block, 1 + 8 * (c & 1) + 2 * w) ^ 0x80808080u;
        [[unroll]] for (int b = 0; b < 4; ++b) {
            q[4 * w + b] = vk_byte_bits(bytes, b, 8);
        }
    }
    float d = vk_block_half(block);
    scale[0] = vec2(d, -384.0 * d);
}

void vk_chunk_iq4_nl(uint64_t row, int c, out float q[16], out vec2 scale[1]) {
    uint64_t block = row + uint64_t(uint(c >> 1) * 18u);
    vk_levels(vk_block_words(block, 1 + 4 * (c & 1)), q);
    scale[0] = vec2(vk_block_half(block), 0.0);
}

// Half c & 1 of a part of 32.
void vk_chunk_iq4_xs(uint64_t row, int c, out float q[16], out vec2 scale[1]) {
    Buffer_uvec2 block = Buffer_uvec2(row + uint64_t(uint(c >> 4) * 136u));
    int part = (c >> 1) & 7;
    vk_levels(block.d[1 + (c & 15)], q);
    uvec2 head = block.d[0];
    uint six = bitfieldExtract(head.y, 4 * part, 4) | bitfieldExtract(head.x, 16 + 2 * part, 2) << 4;
    scale[0] = vec2(unpackHalf2x16(head.x).x * float(int(six) - 32), 0.0);
}

// 16 bytes of a group of 32, whose low halves are of one part and whose high ones of the next.
void vk_chunk_q4_k(uint64_t row, int c, out float q[32], out vec2 scale[2]) {
    Buffer_uvec4 block = Buffer_uvec4(row + uint64_t(uint(c >> 3) * 144u));
    int part = c & 6;
    uvec4 fours = block.d[1 + (c & 7)], head = block.d[0];
    [[unroll]] for (int v = 0; v < 2; ++v) {
        float eights[16];
        vk_nibbles(v == 0 ? fours.xy : fours.zw, eights);
        [[unroll]] for (int i = 0; i < 8; ++i) {
            q[8 * v + i] = eights[i];
            q[8 * v + i + 16] = eights[i + 8];
        }
    }
    vec4 dm = vk_scales_min_k(head, part);
    scale[0] = vec2(dm.x, -(dm.z + vk_low_offset() * dm.x));
    scale[1] = vec2(dm.y, -(dm.w + 16.0 * dm.y));
}

void vk_chunk_q5_k(uint64_t row, int c, out float q[32], out vec2 scale[2]) {
    Buffer_uvec4 block = Buffer_uvec4(row + uint64_t(uint(c >> 3) * 176u));
    int part = c & 6;
    uvec4 fours = block.d[3 + (c & 7)], fifths = block.d[1 + (c & 1)] >> part, head = block.d[0];
    [[unroll]] for (int p = 0; p < 2; ++p) {
        uvec4 five = ((fours >> (4 * p)) & 0x0f0f0f0fu) | ((fifths << (4 - p)) & 0x10101010u);
        [[unroll]] for (int i = 0; i < 16; ++i) {
            q[16 * p + i] = vk_byte_bits(five[i >> 2], i & 3, 5);
        }
    }
    vec4 dm = vk_scales_min_k(head, part);
    scale[0] = vec2(dm.x, -(dm.z + 32.0 * dm.x));
    scale[1] = vec2(dm.y, -(dm.w + 32.0 * dm.y));
}

// Of half h of a block of 256, two bits each of eight bytes, the first being byte l of 32: weights l + 32 j + 128 h.
void vk_chunk_q2_k(uint64_t row, int c, out float q[32], out vec2 scale[4]) {
    Buffer_uint block = Buffer_uint(row + uint64_t(uint(c >> 3) * 84u));
    int h = (c >> 2) & 1, word = 4 + 8 * h + 2 * (c & 3);
    uvec2 twos = uvec2(block.d[word], block.d[word + 1]);
    uvec2 scales = uvec2(block.d[2 * h], block.d[2 * h + 1]) >> (4 * (c & 2));
    vec2 dm = unpackHalf2x16(block.d[20]);
    [[unroll]] for (int j = 0; j < 4; ++j) {
        uint both = scales[j >> 1] >> (16 * (j & 1));
        float d = dm.x * float(int(both & 15u));
        scale[j] = vec2(d, -(dm.y * float(int((both >> 4) & 15u)) + 4.0 * d));
        [[unroll]] for (int i = 0; i < 8; ++i) {
            q[8 * j + i] = vk_two_4(twos[i >> 2], 8 * (i & 3) + 2 * j);
        }
    }
}

void vk_chunk_q3_k(uint64_t row, int c, out float q[32], out vec2 scale[4]) {
    uint64_t block = row + uint64_t(uint(c >> 3) * 110u);
    int h = (c >> 2) & 1, half_word = 4 * (c & 3), shift = 4 * h + 4 * (c & 2);
    uvec2 twos = vk_block_words(block, 16 + 16 * h + half_word), thirds = vk_block_words(block, half_word) >> (4 * h);
    // Scales 8 h + 2 j and the one after it.
    uvec2 low = vk_block_words(block, 48) >> shift;
    uint high = vk_block_word(block, 52) >> shift;
    float d = vk_block_half(block + 108ul);
    [[unroll]] for (int j = 0; j < 4; ++j) {
        uint six = bitfieldExtract(low[j >> 1], 16 * (j & 1), 4) | bitfieldExtract(high, 16 * (j & 1) + 2 * (j >> 1), 2) << 4;
        float dl = d * float(int(six) - 32);
        scale[j] = vec2(dl, -12.0 * dl);
        uvec2 three = ((twos >> (2 * j)) & 0x03030303u) | ((j < 3 ? thirds << (2 - j) : thirds >> 1) & 0x04040404u);
        [[unroll]] for (int i = 0; i < 8; ++i) {
            q[8 * j + i] = vk_byte_bits(three[i >> 2], i & 3, 3);
        }
    }
}

// As Q2_K: weights l + 32 j + 128 h, of half j / 2 of bytes l and l + 32 and of two bits of a third.
void vk_chunk_q6_k(uint64_t row, int c, out float q[32], out vec2 scale[4]) {
    uint64_t block = row + uint64_t(uint(c >> 3) * 210u);
    int h = (c >> 2) & 1, half_word = 4 * (c & 3);
    uvec2 low = vk_block_words(block, 32 * h + half_word), high = vk_block_words(block, 32 * h + 16 + half_word);
    uvec2 twos = vk_block_words(block, 64 + 16 * h + half_word);
    uvec2 scales = vk_block_words(block, 96 + 4 * h);
    float d = vk_block_half(block + 208ul);
    [[unroll]] for (int j = 0; j < 4; ++j) {
        float dl = d * float(bitfieldExtract(int(scales[j >> 1] >> (4 * (c & 2))), 16 * (j & 1), 8));
        scale[j] = vec2(dl, -96.0 * dl);
        uvec2 four = ((j & 1) == 0 ? low : high) >> (4 * (j >> 1)), two = j < 3 ? twos << (4 - 2 * j) : twos >> 2;
        uvec2 six = (four & 0x0f0f0f0fu) | (two & 0x30303030u);
        [[unroll]] for (int i = 0; i < 8; ++i) {
            q[8 * j + i] = vk_byte_bits(six[i >> 2], i & 3, 6);
        }
    }
}
