// Pieces of rows in GGUF's block formats, as products read them: vk_chunk_<format>(row, c, q, scale) loads chunk `c` of a row.
// Neighbouring chunks lie in neighbouring words. Weight i of a chunk is scale[s].x * q[i] + scale[s].y, s its part of the
// chunk; which weights of the row these are says codegen/quantized/chunks.py. Here q is not exact as in
// vk_dequantize_<format>, but made by two instructions: bits of an integer stand at the top of the mantissa of a float
// 2^n, which makes 2^n + integer; scale[s].y takes that away again, which costs at most 5 bits of float32's 24.

// 16 + the four bits at `shift` of a word.
float vk_nibble_16(uint word, int shift) {
    uint bits = shift > 19 ? word >> (shift - 19) : word << (19 - shift);
    return uintBitsToFloat((bits & 0x780000u) | 0x41800000u);
}

// 32 + the four bits at `shift` of a word + 16 times bit `place` of another.
float vk_five_32(uint word, int shift, uint high, int place) {
    uint bits = shift > 18 ? word >> (shift - 18) : word << (18 - shift);
    uint top = place > 22 ? high >> (place - 22) : high << (22 - place);
    return uintBitsToFloat((bits & 0x3c0000u) | (top & 0x400000u) | 0x42000000u);
}

// 64 + the four bits at `shift` of a word + 16 times the two bits at `place` of another.
float vk_six_64(uint word, int shift, uint high, int place) {
    uint bits = shift > 17 ? word >> (shift - 17) : word << (17 - shift);
    uint top = place > 21 ? high >> (place - 21) : high << (21 - place);
    return uintBitsToFloat((bits & 0x1e0000u) | (top & 0x600000u) | 0x42800000u);
}

// 256 + a byte of a word.
float vk_byte_256(uint word, int shift) {
    uint bits = shift > 15 ? word >> (shift - 15) : word << (15 - shift);
    return uintBitsToFloat((bits & 0x7f8000u) | 0x43800000u);
}

// 4 + the two bits at `shift` of a word.
float vk_two_4(uint word, int shift) {
    uint bits = shift > 21 ? word >> (shift - 21) : word << (21 - shift);
    return uintBitsToFloat((bits & 0x600000u) | 0x40800000u);
}

// 8 + the two bits at `shift` of a word + 4 times bit `place` of another.
float vk_three_8(uint word, int shift, uint high, int place) {
    uint bits = shift > 20 ? word >> (shift - 20) : word << (20 - shift);
    uint top = place > 22 ? high >> (place - 22) : high << (22 - place);
    return uintBitsToFloat((bits & 0x300000u) | (top & 0x400000u) | 0x41000000u);
}

void vk_nibbles_16(uint word, out float q[8]) {
    [[unroll]] for (int b = 0; b < 4; ++b) {
        q[b] = vk_nibble_16(word, 8 * b);
        q[b + 4] = vk_nibble_16(word, 8 * b + 4);
    }
}

void vk_fives_32(uint word, uint high, out float q[8]) {
    [[unroll]] for (int b = 0; b < 4; ++b) {
        q[b] = vk_five_32(word, 8 * b, high, b);
        q[b + 4] = vk_five_32(word, 8 * b + 4, high, b + 16);
    }
}

void vk_chunk_q4_0(uint64_t row, int c, out float q[8], out vec2 scale[1]) {
    uint64_t block = row + uint64_t(uint(c >> 2) * 18u);
    vk_nibbles_16(vk_block_word(block, 1 + 2 * (c & 3)), q);
    float d = vk_block_half(block);
    scale[0] = vec2(d, -24.0 * d);
}

void vk_chunk_q4_1(uint64_t row, int c, out float q[8], out vec2 scale[1]) {
    Buffer_uint block = Buffer_uint(row + uint64_t(uint(c >> 2) * 20u));
    vk_nibbles_16(block.d[1 + (c & 3)], q);
    vec2 dm = unpackHalf2x16(block.d[0]);
    scale[0] = vec2(dm.x, dm.y - 16.0 * dm.x);
}

void vk_chunk_q5_0(uint64_t row, int c, out float q[8], out vec2 scale[1]) {
    uint64_t block = row + uint64_t(uint(c >> 2) * 22u);
    int word = c & 3;
    vk_fives_32(vk_block_word(block, 3 + 2 * word), vk_block_word(block, 1) >> (4 * word), q);
    float d = vk_block_half(block);
    scale[0] = vec2(d, -48.0 * d);
}

void vk_chunk_q5_1(uint64_t row, int c, out float q[8], out vec2 scale[1]) {
    Buffer_uint block = Buffer_uint(row + uint64_t(uint(c >> 2) * 24u));
    int word = c & 3;
    vk_fives_32(block.d[2 + word], block.d[1] >> (4 * word), q);
    vec2 dm = unpackHalf2x16(block.d[0]);
    scale[0] = vec2(dm.x, dm.y - 32.0 * dm.x);
}

void vk_chunk_q8_0(uint64_t row, int c, out float q[8], out vec2 scale[1]) {
    uint64_t block = row + uint64_t(uint(c >> 2) * 34u);
    int word = 1 + 4 * (c & 3);
    uvec2 bytes = uvec2(vk_block_word(block, word), vk_block_word(block, word + 2)) ^ 0x80808080u;
    [[unroll]] for (int b = 0; b < 4; ++b) {
        q[b] = vk_byte_256(bytes.x, 8 * b);
        q[b + 4] = vk_byte_256(bytes.y, 8 * b);
    }
    float d = vk_block_half(block);
    scale[0] = vec2(d, -384.0 * d);
}

// Of half h of a block of 256, two bits each of four bytes, the first being byte l of 32: weights l + 32 j + 128 h.
void vk_chunk_q2_k(uint64_t row, int c, out float q[16], out vec2 scale[4]) {
    Buffer_uint block = Buffer_uint(row + uint64_t(uint(c >> 4) * 84u));
    int h = (c >> 3) & 1, word = c & 7;
    uint twos = block.d[4 + 8 * h + word];
    uvec2 scales = uvec2(block.d[2 * h], block.d[2 * h + 1]) >> (8 * (word >> 2));
    vec2 dm = unpackHalf2x16(block.d[20]);
    [[unroll]] for (int j = 0; j < 4; ++j) {
        uint both = scales[j >> 1] >> (16 * (j & 1));
        float d = dm.x * float(int(both & 15u));
        scale[j] = vec2(d, -(dm.y * float(int((both >> 4) & 15u)) + 4.0 * d));
        [[unroll]] for (int b = 0; b < 4; ++b) {
            q[4 * j + b] = vk_two_4(twos, 8 * b + 2 * j);
        }
    }
}

void vk_chunk_q3_k(uint64_t row, int c, out float q[16], out vec2 scale[4]) {
    uint64_t block = row + uint64_t(uint(c >> 4) * 110u);
    int h = (c >> 3) & 1, word = c & 7, odd = 8 * (word >> 2);
    uint twos = vk_block_word(block, 16 + 16 * h + 2 * word), thirds = vk_block_word(block, 2 * word) >> (4 * h);
    // Scales 8 h + 2 j and the one after it.
    uvec2 low = uvec2(vk_block_word(block, 48), vk_block_word(block, 50)) >> (4 * h + odd);
    uint high = vk_block_word(block, 52) >> (4 * h + odd);
    float d = vk_block_half(block + 108ul);
    [[unroll]] for (int j = 0; j < 4; ++j) {
        uint six = bitfieldExtract(low[j >> 1], 16 * (j & 1), 4) | bitfieldExtract(high, 16 * (j & 1) + 2 * (j >> 1), 2) << 4;
        float dl = d * float(int(six) - 32);
        scale[j] = vec2(dl, -12.0 * dl);
        [[unroll]] for (int b = 0; b < 4; ++b) {
            q[4 * j + b] = vk_three_8(twos, 8 * b + 2 * j, thirds, 8 * b + j);
        }
    }
}

// Eight bytes of a group of 32, whose low halves are of one part and whose high ones of the next.
void vk_chunk_q4_k(uint64_t row, int c, out float q[16], out vec2 scale[2]) {
    uint64_t block = row + uint64_t(uint(c >> 4) * 144u);
    int group = (c >> 2) & 3;
    uvec2 fours = Buffer_uvec2(block + 16ul).d[c & 15];
    uvec4 head = Buffer_uvec4(block).d[0];
    [[unroll]] for (int p = 0; p < 2; ++p) {
        vec2 dm = vk_scale_min_k(head, 2 * group + p);
        scale[p] = vec2(dm.x, -(dm.y + 16.0 * dm.x));
        [[unroll]] for (int b = 0; b < 8; ++b) {
            q[8 * p + b] = vk_nibble_16(fours[b >> 2], 8 * (b & 3) + 4 * p);
        }
    }
}

void vk_chunk_q5_k(uint64_t row, int c, out float q[16], out vec2 scale[2]) {
    uint64_t block = row + uint64_t(uint(c >> 4) * 176u);
    int group = (c >> 2) & 3;
    uvec2 fours = Buffer_uvec2(block + 48ul).d[c & 15], fifths = Buffer_uvec2(block + 16ul).d[c & 3] >> (2 * group);
    uvec4 head = Buffer_uvec4(block).d[0];
    [[unroll]] for (int p = 0; p < 2; ++p) {
        vec2 dm = vk_scale_min_k(head, 2 * group + p);
        scale[p] = vec2(dm.x, -(dm.y + 32.0 * dm.x));
        [[unroll]] for (int b = 0; b < 8; ++b) {
            q[8 * p + b] = vk_five_32(fours[b >> 2], 8 * (b & 3) + 4 * p, fifths[b >> 2], 8 * (b & 3) + p);
        }
    }
}

// As Q2_K: weights l + 32 j + 128 h, of half j / 2 of bytes l and l + 32 and of two bits of a third.
void vk_chunk_q6_k(uint64_t row, int c, out float q[16], out vec2 scale[4]) {
    uint64_t block = row + uint64_t(uint(c >> 4) * 210u);
    int h = (c >> 3) & 1, word = c & 7;
    uvec2 fours = uvec2(vk_block_word(block, 32 * h + 2 * word), vk_block_word(block, 32 * h + 16 + 2 * word));
    uint twos = vk_block_word(block, 64 + 16 * h + 2 * word);
    Buffer_uint16_t scales = Buffer_uint16_t(block + 192ul);
    float d = vk_block_half(block + 208ul);
    [[unroll]] for (int j = 0; j < 4; ++j) {
        float dl = d * float(bitfieldExtract(int(uint(scales.d[4 * h + j])), 8 * (word >> 2), 8));
        scale[j] = vec2(dl, -96.0 * dl);
        [[unroll]] for (int b = 0; b < 4; ++b) {
            q[4 * j + b] = vk_six_64(fours[j & 1], 8 * b + 4 * (j >> 1), twos, 8 * b + 2 * j);
        }
    }
}

void vk_levels(uint word, out float q[8]) {
    [[unroll]] for (int b = 0; b < 4; ++b) {
        q[b] = vk_iq4_level(bitfieldExtract(word, 8 * b, 4));
        q[b + 4] = vk_iq4_level(bitfieldExtract(word, 8 * b + 4, 4));
    }
}

void vk_chunk_iq4_nl(uint64_t row, int c, out float q[8], out vec2 scale[1]) {
    uint64_t block = row + uint64_t(uint(c >> 2) * 18u);
    vk_levels(vk_block_word(block, 1 + 2 * (c & 3)), q);
    scale[0] = vec2(vk_block_half(block), 0.0);
}

void vk_chunk_iq4_xs(uint64_t row, int c, out float q[8], out vec2 scale[1]) {
    uint64_t block = row + uint64_t(uint(c >> 5) * 136u);
    int part = (c >> 2) & 7;
    vk_levels(Buffer_uint(block).d[2 + (c & 31)], q);
    uvec2 head = Buffer_uvec2(block).d[0];
    uint six = bitfieldExtract(head.y, 4 * part, 4) | bitfieldExtract(head.x, 16 + 2 * part, 2) << 4;
    scale[0] = vec2(unpackHalf2x16(head.x).x * float(int(six) - 32), 0.0);
}
