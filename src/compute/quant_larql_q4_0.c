/*
 * quant_larql_q4_0.c: LARQL's Q4_0, 32 elements in 18 bytes: x = d * (n - 8). GGUF's has the same
 * size and other neighbours in a byte.
 *
 *   byte  0  1   2 .. 17
 *         [d ]   [qs   ]
 *   d: f16, amax / 7; qs[j]: element 2j in the low four bits, 2j + 1 in the high ones.
 */
#include "compute/quant_block.h"
#include "compute/quant_larql.h"

typedef struct block_larql_q4_0 {
    uint8_t d[2];
    uint8_t qs[16];
} block_larql_q4_0;
_Static_assert(sizeof(block_larql_q4_0) == 18, "Q4_0 block");

static inline void larql_q4_0_unpack_block(int8_t *restrict q, float *restrict scale,
                                           float *restrict min, const block_larql_q4_0 *restrict b)
{
    (void)min;
    for (int j = 0; j < 16; j++) {
        q[2 * j] = (int8_t)((b->qs[j] & 15) - 8);
        q[2 * j + 1] = (int8_t)((b->qs[j] >> 4) - 8);
    }
    scale[0] = load_f16(b->d);
}
QUANT_DECODERS(larql_q4_0, 32, 32, false)

static void larql_q4_0_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    block_larql_q4_0 *b = blocks;
    for (; n >= 32; n -= 32, x += 32, b++) {
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        float d = amax / 7.0f, inv = d > 0 ? 1.0f / d : 0;
        store_u16(b->d, larql_f16(d));
        for (int j = 0; j < 16; j++) {
            int lo = (int)clamp_float(roundf(x[2 * j] * inv) + 8, 0, 15);
            int hi = (int)clamp_float(roundf(x[2 * j + 1] * inv) + 8, 0, 15);
            b->qs[j] = (uint8_t)(lo | hi << 4);
        }
    }
}

/* The same numbers in GGUF's order: byte j has elements j and j + 16. */
void larql_q4_0_to_gguf(void *to, const void *from, size_t n)
{
    const block_larql_q4_0 *b = from;
    block_larql_q4_0 *out = to;
    for (; n >= 32; n -= 32, b++, out++) {
        *out = *b;
        for (int j = 0; j < 16; j++) {
            int lo = b->qs[j / 2] >> 4 * (j % 2) & 15, hi = b->qs[8 + j / 2] >> 4 * (j % 2) & 15;
            out->qs[j] = (uint8_t)(lo | hi << 4);
        }
    }
}

const quant_format quant_larql_q4_0 = {
    .name = "larql_q4_0",
    .ggml_type = -1,
    .block_size = 32,
    .block_bytes = sizeof(block_larql_q4_0),
    .sub = 32,
    .dequant = larql_q4_0_dequant,
    .unpack = larql_q4_0_unpack,
    .quantize = larql_q4_0_quantize,
};
