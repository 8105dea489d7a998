// Weights of GGUF's block formats: vk_dequantize_<format>(row, unit, values) gives the 32 weights number 32 * unit and on of
// the row of blocks that begins at address `row`, bit for bit as the `gguf` package computes them in float32. A row begins
// at a multiple of its format's alignment (codegen/quantized/formats.py): the largest power of two that divides a block,
// at most 16. Layouts are those of ggml's block structures. Products of a half's 11 bits and small integers are exact in
// 24 bits, so that contraction changes nothing; `precise` stands where one is not.

// 32 bits at a multiple of 2 bytes, halves `i` and i + 1 from there. A CPU loads words from anywhere (WORDS_ANYWHERE).
uint vk_block_word(uint64_t address, int i) {
#ifdef WORDS_ANYWHERE
    return Buffer_uint(address + uint64_t(2 * i)).d[0];
#else
    Buffer_uint16_t halves = Buffer_uint16_t(address);
    return uint(halves.d[i]) | uint(halves.d[i + 1]) << 16;
#endif
}

float vk_block_half(uint64_t address) {
    return unpackHalf2x16(uint(Buffer_uint16_t(address).d[0])).x;
}

// Four bits at `shift` of a word as a float.
float vk_nibble(uint word, int shift) {
    return float(int(bitfieldExtract(word, shift, 4)));
}

// d, then 16 bytes: weight i in the low half of byte i, weight i + 16 in the high one, each 8 too high.
void vk_dequantize_q4_0(uint64_t row, int unit, out float values[32]) {
    uint64_t block = row + uint64_t(unit) * 18ul;
    float d = vk_block_half(block);
    [[unroll]] for (int w = 0; w < 4; ++w) {
        uint q = vk_block_word(block, 1 + 2 * w);
        [[unroll]] for (int b = 0; b < 4; ++b) {
            values[4 * w + b] = d * (vk_nibble(q, 8 * b) - 8.0);
            values[4 * w + b + 16] = d * (vk_nibble(q, 8 * b + 4) - 8.0);
        }
    }
}

// d and the least weight m, then as Q4_0.
void vk_dequantize_q4_1(uint64_t row, int unit, out float values[32]) {
    Buffer_uint block = Buffer_uint(row + uint64_t(unit) * 20ul);
    vec2 scale = unpackHalf2x16(block.d[0]);
    [[unroll]] for (int w = 0; w < 4; ++w) {
        uint q = block.d[1 + w];
        [[unroll]] for (int b = 0; b < 4; ++b) {
            values[4 * w + b] = scale.x * vk_nibble(q, 8 * b) + scale.y;
            values[4 * w + b + 16] = scale.x * vk_nibble(q, 8 * b + 4) + scale.y;
        }
    }
}

// d, a word with bit 4 of every weight, then as Q4_0; each 16 too high.
void vk_dequantize_q5_0(uint64_t row, int unit, out float values[32]) {
    uint64_t block = row + uint64_t(unit) * 22ul;
    float d = vk_block_half(block);
    uint high = vk_block_word(block, 1);
    [[unroll]] for (int w = 0; w < 4; ++w) {
        uint q = vk_block_word(block, 3 + 2 * w);
        [[unroll]] for (int b = 0; b < 4; ++b) {
            int i = 4 * w + b;
            uint low = bitfieldExtract(q, 8 * b, 4) | bitfieldExtract(high, i, 1) << 4;
            uint up = bitfieldExtract(q, 8 * b + 4, 4) | bitfieldExtract(high, i + 16, 1) << 4;
            values[i] = d * float(int(low) - 16);
            values[i + 16] = d * float(int(up) - 16);
        }
    }
}

// d and m, then as Q5_0.
void vk_dequantize_q5_1(uint64_t row, int unit, out float values[32]) {
    Buffer_uint block = Buffer_uint(row + uint64_t(unit) * 24ul);
    vec2 scale = unpackHalf2x16(block.d[0]);
    uint high = block.d[1];
    [[unroll]] for (int w = 0; w < 4; ++w) {
        uint q = block.d[2 + w];
        [[unroll]] for (int b = 0; b < 4; ++b) {
            int i = 4 * w + b;
            uint low = bitfieldExtract(q, 8 * b, 4) | bitfieldExtract(high, i, 1) << 4;
            uint up = bitfieldExtract(q, 8 * b + 4, 4) | bitfieldExtract(high, i + 16, 1) << 4;
            values[i] = scale.x * float(int(low)) + scale.y;
            values[i + 16] = scale.x * float(int(up)) + scale.y;
        }
    }
}

// d, then 32 signed bytes.
void vk_dequantize_q8_0(uint64_t row, int unit, out float values[32]) {
    uint64_t block = row + uint64_t(unit) * 34ul;
    float d = vk_block_half(block);
    [[unroll]] for (int w = 0; w < 8; ++w) {
        int q = int(vk_block_word(block, 1 + 2 * w));
        [[unroll]] for (int b = 0; b < 4; ++b) {
            values[4 * w + b] = float(bitfieldExtract(q, 8 * b, 8)) * d;
        }
    }
}

// 16 scales (4 bits, and 4 of a minimum), 64 bytes of two bits, d and dmin. Weight 128 h + 32 j + l is in byte 32 h + l.
void vk_dequantize_q2_k(uint64_t row, int unit, out float values[32]) {
    Buffer_uint block = Buffer_uint(row + uint64_t(unit >> 3) * 84ul);
    int part = unit & 7, shift = 2 * (part & 3), words = 4 + 8 * (part >> 2);
    vec2 scale = unpackHalf2x16(block.d[20]);
    uint scales = block.d[part >> 1] >> (16 * (part & 1));
    [[unroll]] for (int s = 0; s < 2; ++s) {
        float d = scale.x * vk_nibble(scales, 8 * s), m = scale.y * vk_nibble(scales, 8 * s + 4);
        [[unroll]] for (int w = 0; w < 4; ++w) {
            uint q = block.d[words + 4 * s + w] >> shift;
            [[unroll]] for (int b = 0; b < 4; ++b) {
                values[16 * s + 4 * w + b] = d * float(int(bitfieldExtract(q, 8 * b, 2))) - m;
            }
        }
    }
}

// 32 bytes with the third bits, 64 with two bits as in Q2_K, 16 scales of 6 bits in 12 bytes, d. A third bit that is not set
// takes 4 away; scales are 32 too high: their low halves in 8 bytes, the upper two bits in 4.
void vk_dequantize_q3_k(uint64_t row, int unit, out float values[32]) {
    uint64_t block = row + uint64_t(unit >> 3) * 110ul;
    int part = unit & 7, shift = 2 * (part & 3), halves = 16 + 16 * (part >> 2);
    float d = vk_block_half(block + 108ul);
    // Scales 2 part and 2 part + 1.
    uint low = uint(Buffer_uint16_t(block).d[48 + (part & 3)]) >> (4 * (part >> 2));
    uint high = uint(Buffer_uint16_t(block).d[52 + (part & 1)]) >> (2 * (part >> 1));
    [[unroll]] for (int s = 0; s < 2; ++s) {
        uint scale = bitfieldExtract(low, 8 * s, 4) | bitfieldExtract(high, 8 * s, 2) << 4;
        float dl = d * float(int(scale) - 32);
        [[unroll]] for (int w = 0; w < 4; ++w) {
            uint q = vk_block_word(block, halves + 8 * s + 2 * w) >> shift;
            uint third = vk_block_word(block, 8 * s + 2 * w) >> part;
            [[unroll]] for (int b = 0; b < 4; ++b) {
                int three = int(bitfieldExtract(q, 8 * b, 2) | bitfieldExtract(third, 8 * b, 1) << 2);
                values[16 * s + 4 * w + b] = dl * float(three - 4);
            }
        }
    }
}

// Of the first 16 bytes of a block of Q4_K or Q5_K, d, dmin and 12 bytes with 6 bits of 8 scales and of 8 minima: the
// scale and the minimum of part `part`. The first four of each are the low bits of a byte, whose upper two go to the others.
vec2 vk_scale_min_k(uvec4 head, int part) {
    vec2 scale = unpackHalf2x16(head.x);
    int shift = 8 * (part & 3);
    uint s = head.y >> shift, m = head.z >> shift;
    if (part >= 4) {
        uint both = head.w >> shift;
        s = (both & 15u) | ((s >> 2) & 48u);
        m = ((both >> 4) & 15u) | ((m >> 2) & 48u);
    }
    return scale * vec2(float(int(s & 63u)), float(int(m & 63u)));
}

// Scales of parts `part` (even) and part + 1, then their minima.
vec4 vk_scales_min_k(uvec4 head, int part) {
    vec2 a = vk_scale_min_k(head, part), b = vk_scale_min_k(head, part + 1);
    return vec4(a.x, b.x, a.y, b.y);
}

// Those 16 bytes, then 128: weight 64 g + l in the low half of byte 32 g + l, weight 64 g + 32 + l in the high one.
void vk_dequantize_q4_k(uint64_t row, int unit, out float values[32]) {
    Buffer_uvec4 block = Buffer_uvec4(row + uint64_t(unit >> 3) * 144ul);
    int part = unit & 7, shift = 4 * (part & 1);
    vec2 scale = vk_scale_min_k(block.d[0], part);
    [[unroll]] for (int v = 0; v < 2; ++v) {
        uvec4 q = block.d[1 + 2 * (part >> 1) + v] >> shift;
        [[unroll]] for (int w = 0; w < 4; ++w) {
            [[unroll]] for (int b = 0; b < 4; ++b) {
                values[16 * v + 4 * w + b] = scale.x * vk_nibble(q[w], 8 * b) - scale.y;
            }
        }
    }
}

// As Q4_K, with 32 bytes between: bit p of byte l is the fifth of weight 32 p + l.
void vk_dequantize_q5_k(uint64_t row, int unit, out float values[32]) {
    Buffer_uvec4 block = Buffer_uvec4(row + uint64_t(unit >> 3) * 176ul);
    int part = unit & 7, shift = 4 * (part & 1);
    vec2 scale = vk_scale_min_k(block.d[0], part);
    [[unroll]] for (int v = 0; v < 2; ++v) {
        uvec4 high = block.d[1 + v] >> part, q = block.d[3 + 2 * (part >> 1) + v] >> shift;
        [[unroll]] for (int w = 0; w < 4; ++w) {
            [[unroll]] for (int b = 0; b < 4; ++b) {
                uint five = bitfieldExtract(q[w], 8 * b, 4) | bitfieldExtract(high[w], 8 * b, 1) << 4;
                values[16 * v + 4 * w + b] = scale.x * float(int(five)) - scale.y;
            }
        }
    }
}

// 128 bytes of four bits, 64 of two, 16 signed scales, d; weights are 32 too high. Weight 128 h + 64 u + 32 v + l has its
// lower bits in half u of byte 64 h + 32 v + l, the upper ones at 2 (2 u + v) of byte 32 h + l.
void vk_dequantize_q6_k(uint64_t row, int unit, out float values[32]) {
    uint64_t block = row + uint64_t(unit >> 3) * 210ul;
    int part = unit & 7, low = 32 * (part >> 2) + 16 * (part & 1), high = 64 + 16 * (part >> 2);
    int shift = 4 * ((part >> 1) & 1), shift_high = 2 * (part & 3);
    float d = vk_block_half(block + 208ul);
    int scales = int(uint(Buffer_uint16_t(block).d[96 + part]));
    [[unroll]] for (int s = 0; s < 2; ++s) {
        precise float dl = d * float(bitfieldExtract(scales, 8 * s, 8));
        [[unroll]] for (int w = 0; w < 4; ++w) {
            uint q = vk_block_word(block, low + 8 * s + 2 * w) >> shift;
            uint two = vk_block_word(block, high + 8 * s + 2 * w) >> shift_high;
            [[unroll]] for (int b = 0; b < 4; ++b) {
                uint six = bitfieldExtract(q, 8 * b, 4) | bitfieldExtract(two, 8 * b, 2) << 4;
                precise float value = dl * float(int(six) - 32);
                values[16 * s + 4 * w + b] = value;
            }
        }
    }
}

// The 16 levels of IQ4_NL and IQ4_XS: four signed bytes a word.
float vk_iq4_level(uint i) {
    uint low = i < 4u ? 0xbfad9881u : 0xf6eaddcfu, high = i < 12u ? 0x26190d01u : 0x71594535u;
    return float(bitfieldExtract(int(i < 8u ? low : high), 8 * int(i & 3u), 8));
}

// As Q4_0, of levels.
void vk_dequantize_iq4_nl(uint64_t row, int unit, out float values[32]) {
    uint64_t block = row + uint64_t(unit) * 18ul;
    float d = vk_block_half(block);
    [[unroll]] for (int w = 0; w < 4; ++w) {
        uint q = vk_block_word(block, 1 + 2 * w);
        [[unroll]] for (int b = 0; b < 4; ++b) {
            values[4 * w + b] = d * vk_iq4_level(bitfieldExtract(q, 8 * b, 4));
            values[4 * w + b + 16] = d * vk_iq4_level(bitfieldExtract(q, 8 * b + 4, 4));
        }
    }
}

// d, the upper two bits of 8 scales in 2 bytes, the lower ones in 4, each 32 too high; then 16 bytes as in IQ4_NL for each.
void vk_dequantize_iq4_xs(uint64_t row, int unit, out float values[32]) {
    Buffer_uvec2 block = Buffer_uvec2(row + uint64_t(unit >> 3) * 136ul);
    int part = unit & 7;
    uvec2 head = block.d[0];
    uint scale = bitfieldExtract(head.y, 4 * part, 4) | bitfieldExtract(head.x, 16 + 2 * part, 2) << 4;
    precise float d = unpackHalf2x16(head.x).x * float(int(scale) - 32);
    [[unroll]] for (int v = 0; v < 2; ++v) {
        uvec2 q = block.d[1 + 2 * part + v];
        [[unroll]] for (int w = 0; w < 2; ++w) {
            [[unroll]] for (int b = 0; b < 4; ++b) {
                precise float low = d * vk_iq4_level(bitfieldExtract(q[w], 8 * b, 4));
                precise float high = d * vk_iq4_level(bitfieldExtract(q[w], 8 * b + 4, 4));
                values[8 * v + 4 * w + b] = low;
                values[8 * v + 4 * w + b + 16] = high;
            }
        }
    }
}
