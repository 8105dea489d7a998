// Units of rows in GGUF's block formats: 64 weights, as the words that hold them (codegen/fused/units.py says which).
// vk_bytes_<format>(w, u, q, scale) gives them as signed bytes: with weights scale[p].x * byte + scale[p].y, p the part of the
// unit, which are equal parts in order. vk_floats_<format> gives scale[p].x * q + scale[p].y, of 16 weights a part, where q has
// more than its integer (quantized_chunks.glsl says why). Bits of four or six stand at the upper end of their byte, with the
// highest one turned round: so a byte is 16 (4) times the integer less the half of its range, at no cost.

// Of bytes of pairs of four bits, the low halves, 16 * (low - 8), and the high ones.
uint vk_low_bytes(uint word) {
    return ((word << 4) & 0xf0f0f0f0u) ^ 0x80808080u;
}

uint vk_high_bytes(uint word) {
    return (word & 0xf0f0f0f0u) ^ 0x80808080u;
}

// Four bits, one in each byte's fifth bit from the top (bit 3 of 8 * five).
uint vk_spread_bits(uint bits) {
    return ((bits & 15u) * 0x00204081u) & 0x01010101u;
}

// 8 * (five - 16) of low halves, or of high ones moved down, and of four fifth bits.
uint vk_five_bytes(uint fours, uint bits) {
    return ((fours & 0x0f0f0f0fu) << 3 | vk_spread_bits(bits) << 7) ^ 0x80808080u;
}

void vk_bytes_q4_0(uint w[9], int u, out uint q[16], out vec2 scale[2]) {
    [[unroll]] for (int i = 0; i < 4; ++i) {
        uint first = w[i] >> 16 | w[i + 1] << 16, second = w[i + 5];
        q[i] = vk_low_bytes(first);
        q[i + 4] = vk_high_bytes(first);
        q[i + 8] = vk_low_bytes(second);
        q[i + 12] = vk_high_bytes(second);
    }
    scale[0] = vec2(0.0625 * unpackHalf2x16(w[0]).x, 0.0);
    scale[1] = vec2(0.0625 * unpackHalf2x16(w[4]).y, 0.0);
}

void vk_bytes_q4_1(uint w[10], int u, out uint q[16], out vec2 scale[2]) {
    [[unroll]] for (int b = 0; b < 2; ++b) {
        [[unroll]] for (int i = 0; i < 4; ++i) {
            q[8 * b + i] = vk_low_bytes(w[5 * b + 1 + i]);
            q[8 * b + i + 4] = vk_high_bytes(w[5 * b + 1 + i]);
        }
        vec2 dm = unpackHalf2x16(w[5 * b]);
        scale[b] = vec2(0.0625 * dm.x, dm.y + 8.0 * dm.x);
    }
}

void vk_bytes_q5_0(uint w[11], int u, out uint q[16], out vec2 scale[2]) {
    uint fifths[2] = uint[](w[0] >> 16 | w[1] << 16, w[6]);
    [[unroll]] for (int i = 0; i < 4; ++i) {
        uint first = w[i + 1] >> 16 | w[i + 2] << 16, second = w[i + 7];
        q[i] = vk_five_bytes(first, fifths[0] >> (4 * i));
        q[i + 4] = vk_five_bytes(first >> 4, fifths[0] >> (4 * i + 16));
        q[i + 8] = vk_five_bytes(second, fifths[1] >> (4 * i));
        q[i + 12] = vk_five_bytes(second >> 4, fifths[1] >> (4 * i + 16));
    }
    scale[0] = vec2(0.125 * unpackHalf2x16(w[0]).x, 0.0);
    scale[1] = vec2(0.125 * unpackHalf2x16(w[5]).y, 0.0);
}

void vk_bytes_q5_1(uint w[12], int u, out uint q[16], out vec2 scale[2]) {
    [[unroll]] for (int b = 0; b < 2; ++b) {
        [[unroll]] for (int i = 0; i < 4; ++i) {
            uint fours = w[6 * b + 2 + i], fifths = w[6 * b + 1] >> (4 * i);
            q[8 * b + i] = vk_five_bytes(fours, fifths);
            q[8 * b + i + 4] = vk_five_bytes(fours >> 4, fifths >> 16);
        }
        vec2 dm = unpackHalf2x16(w[6 * b]);
        scale[b] = vec2(0.125 * dm.x, dm.y + 16.0 * dm.x);
    }
}

void vk_bytes_q8_0(uint w[17], int u, out uint q[16], out vec2 scale[2]) {
    [[unroll]] for (int i = 0; i < 8; ++i) {
        q[i] = w[i] >> 16 | w[i + 1] << 16;
        q[i + 8] = w[i + 9];
    }
    scale[0] = vec2(unpackHalf2x16(w[0]).x, 0.0);
    scale[1] = vec2(unpackHalf2x16(w[8]).y, 0.0);
}

// The first 16 bytes of the block, then the group's 32.
void vk_bytes_q4_k(uint w[12], int u, out uint q[16], out vec2 scale[2]) {
    [[unroll]] for (int i = 0; i < 8; ++i) {
        q[i] = vk_low_bytes(w[4 + i]);
        q[i + 8] = vk_high_bytes(w[4 + i]);
    }
    vec4 dm = vk_scales_min_k(uvec4(w[0], w[1], w[2], w[3]), 2 * (u & 3));
    scale[0] = vec2(0.0625 * dm.x, 8.0 * dm.x - dm.z);
    scale[1] = vec2(0.0625 * dm.y, 8.0 * dm.y - dm.w);
}

// As Q4_K, with the block's 32 bytes of fifth bits between.
void vk_bytes_q5_k(uint w[20], int u, out uint q[16], out vec2 scale[2]) {
    int part = 2 * (u & 3);
    [[unroll]] for (int i = 0; i < 8; ++i) {
        uint fours = w[12 + i], fifths = w[4 + i] >> part;
        q[i] = ((fours & 0x0f0f0f0fu) << 3 | (fifths & 0x01010101u) << 7) ^ 0x80808080u;
        q[i + 8] = (((fours >> 4) & 0x0f0f0f0fu) << 3 | (fifths & 0x02020202u) << 6) ^ 0x80808080u;
    }
    vec4 dm = vk_scales_min_k(uvec4(w[0], w[1], w[2], w[3]), part);
    scale[0] = vec2(0.125 * dm.x, 16.0 * dm.x - dm.z);
    scale[1] = vec2(0.125 * dm.y, 16.0 * dm.y - dm.w);
}

// 32 bytes of four bits, 32 of two bits, the 8 scales of half a block, a word that ends with d. The first 32 weights have the
// lower halves of the bytes; of the two bits, and of the scales, units with an odd number have the further ones.
void vk_bytes_q6_k(uint w[19], int u, out uint q[16], out vec2 scale[4]) {
    int shift = 2 * (u & 1);
    [[unroll]] for (int i = 0; i < 8; ++i) {
        uint fours = w[i], twos = w[8 + i] >> shift;
        q[i] = ((fours & 0x0f0f0f0fu) << 2 | (twos & 0x03030303u) << 6) ^ 0x80808080u;
        q[i + 8] = ((fours >> 2) & 0x3c3c3c3cu | (twos & 0x30303030u) << 2) ^ 0x80808080u;
    }
    float d = 0.25 * unpackHalf2x16(w[18]).y;
    [[unroll]] for (int p = 0; p < 4; ++p) {
        int two = int(w[16 + (p >> 1)] >> (16 * (u & 1)));
        scale[p] = vec2(d * float(bitfieldExtract(two, 8 * (p & 1), 8)), 0.0);
    }
}

// 16 bytes of pairs, a block of 32, as parts `p` and p + 1.
void vk_pairs(uint w0, uint w1, uint w2, uint w3, vec2 dm, int p, inout float q[64], inout vec2 scale[4]) {
    float eights[16];
    [[unroll]] for (int v = 0; v < 2; ++v) {
        vk_nibbles(v == 0 ? uvec2(w0, w1) : uvec2(w2, w3), eights);
        [[unroll]] for (int i = 0; i < 8; ++i) {
            q[16 * p + 8 * v + i] = eights[i];
            q[16 * p + 8 * v + i + 16] = eights[i + 8];
        }
    }
    scale[p] = vec2(dm.x, dm.y - vk_low_offset() * dm.x);
    scale[p + 1] = vec2(dm.x, dm.y - 16.0 * dm.x);
}

void vk_floats_q4_0(uint w[9], int u, out float q[64], out vec2 scale[4]) {
    vec2 d = vec2(unpackHalf2x16(w[0]).x, unpackHalf2x16(w[4]).y);
    uint f[4];
    [[unroll]] for (int i = 0; i < 4; ++i) {
        f[i] = w[i] >> 16 | w[i + 1] << 16;
    }
    vk_pairs(f[0], f[1], f[2], f[3], vec2(d.x, -8.0 * d.x), 0, q, scale);
    vk_pairs(w[5], w[6], w[7], w[8], vec2(d.y, -8.0 * d.y), 2, q, scale);
}

void vk_floats_q4_1(uint w[10], int u, out float q[64], out vec2 scale[4]) {
    vk_pairs(w[1], w[2], w[3], w[4], unpackHalf2x16(w[0]), 0, q, scale);
    vk_pairs(w[6], w[7], w[8], w[9], unpackHalf2x16(w[5]), 2, q, scale);
}

void vk_floats_q8_0(uint w[17], int u, out float q[64], out vec2 scale[4]) {
    [[unroll]] for (int i = 0; i < 16; ++i) {
        uint bytes = (i < 8 ? w[i] >> 16 | w[i + 1] << 16 : w[i + 1]) ^ 0x80808080u;
        [[unroll]] for (int b = 0; b < 4; ++b) {
            q[4 * i + b] = vk_byte_bits(bytes, b, 8);
        }
    }
    vec2 d = vec2(unpackHalf2x16(w[0]).x, unpackHalf2x16(w[8]).y);
    scale[0] = scale[1] = vec2(d.x, -384.0 * d.x);
    scale[2] = scale[3] = vec2(d.y, -384.0 * d.y);
}

void vk_floats_q4_k(uint w[12], int u, out float q[64], out vec2 scale[4]) {
    vec4 dm = vk_scales_min_k(uvec4(w[0], w[1], w[2], w[3]), 2 * (u & 3));
    float eights[16];
    [[unroll]] for (int v = 0; v < 4; ++v) {
        vk_nibbles(uvec2(w[4 + 2 * v], w[5 + 2 * v]), eights);
        [[unroll]] for (int i = 0; i < 8; ++i) {
            q[8 * v + i] = eights[i];
            q[8 * v + i + 32] = eights[i + 8];
        }
    }
    scale[0] = scale[1] = vec2(dm.x, -dm.z - vk_low_offset() * dm.x);
    scale[2] = scale[3] = vec2(dm.y, -dm.w - 16.0 * dm.y);
}

// Four floats of at most 127 as signed bytes, to the nearest, ties to even: 1.5 * 2^23 more leaves the integer in the lowest bits.
uint vk_signed_bytes(vec4 v) {
    uvec4 bits = floatBitsToUint(v + 12582912.0) & 255u;
    return bits.x | bits.y << 8 | bits.z << 16 | bits.w << 24;
}
