/*
 * quant_block.h: what the quant_<fmt>.c files share. For them alone; everybody else reads quant.h.
 *
 * A block struct consists of bytes only, so it has alignment 1 and may lie anywhere in a mapped
 * file. A format writes one function, <fmt>_unpack_block: one block to integers, scales and mins.
 * QUANT_DECODERS makes its unpack and dequant from it. That dequant has the bits of gguf.quants
 * because every format there computes (d * s) * q [- (dmin * m)] in float32, in this order, and the
 * scale and min of unpack are just these rounded products; where the two differ in form (a sign or
 * a power of two moved from one factor to the other) no rounding is involved.
 */
#ifndef COMPUTE_QUANT_BLOCK_H
#define COMPUTE_QUANT_BLOCK_H

#include <math.h>

#include "base/half.h"
#include "compute/quant.h"

// Block bytes are read as little-endian words, and words are stored as runs of q.
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the block formats are little-endian");

#define X(NAME, row) extern const quant_format quant_##row;
QUANT_LIST(X)
#undef X

static inline uint16_t load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t load_u32(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}
static inline uint64_t load_u64(const uint8_t *p)
{
    uint64_t u;
    memcpy(&u, p, 8);
    return u;
}
static inline void store_u16(uint8_t *p, uint16_t u) { memcpy(p, &u, 2); }
static inline void store_u32(uint8_t *p, uint32_t u) { memcpy(p, &u, 4); }
static inline void store_u64(int8_t *p, uint64_t u) { memcpy(p, &u, 8); }
static inline float load_f16(const uint8_t *p) { return f16_to_f32(load_u16(p)); }
static inline void store_f16(uint8_t *p, float f) { store_u16(p, f16_from_f32(f)); }

#define BYTES(b) (0x0101010101010101u * (uint64_t)(b)) // b in every byte of a word

/* Bit i of b to byte i, as 0 or 1. */
static inline uint64_t spread_bits(uint8_t b)
{
    uint64_t bit = BYTES(b) & 0x8040201008040201u;
    return (bit + BYTES(0x7f)) >> 7 & BYTES(1);
}

/* v to [lo, hi], then truncated or rounded to nearest even. NaN gives lo: no float reaches an
 * integer conversion out of range, whatever the input. */
static inline float clamp_float(float v, float lo, float hi)
{
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}
static inline int trunc_clamp(float v, int lo, int hi)
{
    return (int)clamp_float(v, (float)lo, (float)hi);
}
static inline int round_clamp(float v, int lo, int hi)
{
    return (int)rintf(clamp_float(v, (float)lo, (float)hi));
}

/* y[i] = scale * q[i] + min for one block: the product is rounded, then the sum. */
static inline void quant_expand(float *restrict y, const int8_t *restrict q,
                                const float *restrict scale, const float *restrict min, int n,
                                int sub, bool has_min)
{
    for (int s = 0; s < n / sub; s++) {
        if (has_min)
            for (int i = 0; i < sub; i++)
                y[s * sub + i] = scale[s] * (float)q[s * sub + i] + min[s];
        else
            for (int i = 0; i < sub; i++)
                y[s * sub + i] = scale[s] * (float)q[s * sub + i];
    }
}

/* Defines <fmt>_unpack and <fmt>_dequant from <fmt>_unpack_block and block_<fmt>. */
#define QUANT_DECODERS(fmt, n_block, n_sub, with_min)                                              \
    static void fmt##_unpack(int8_t *restrict q, float *restrict scale, float *restrict min,       \
                             const void *blocks, size_t n)                                         \
    {                                                                                              \
        const block_##fmt *b = blocks;                                                             \
        for (size_t i = 0; i < n / (n_block); i++) {                                               \
            fmt##_unpack_block(q, scale, min, b + i);                                              \
            q += (n_block);                                                                        \
            scale += (n_block) / (n_sub);                                                          \
            if (with_min) min += (n_block) / (n_sub);                                              \
        }                                                                                          \
    }                                                                                              \
    static void fmt##_dequant(float *restrict y, const void *blocks, size_t n)                     \
    {                                                                                              \
        const block_##fmt *b = blocks;                                                             \
        int8_t q[n_block];                                                                         \
        float scale[(n_block) / (n_sub)], min[(n_block) / (n_sub)];                                \
        for (size_t i = 0; i < n / (n_block); i++) {                                               \
            fmt##_unpack_block(q, scale, min, b + i);                                              \
            quant_expand(y + i * (n_block), q, scale, min, n_block, n_sub, with_min);              \
        }                                                                                          \
    }

#endif
