/*
 * quant_q8_0.c: Q8_0, 32 elements in 34 bytes (8.5 bits): x = d * q.
 *
 *   byte  0  1  2 .. 33
 *         [d ]  [q    ]     d f16; q int8, in order
 */
#include "compute/quant_block.h"

typedef struct block_q8_0 {
    uint8_t d[2];
    int8_t q[32];
} block_q8_0;
_Static_assert(sizeof(block_q8_0) == 34, "Q8_0 block");

static inline void q8_0_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q8_0 *restrict b)
{
    (void)min;
    memcpy(q, b->q, 32);
    scale[0] = load_f16(b->d);
}
QUANT_DECODERS(q8_0, 32, 32, false)

// Halves are rounded away from zero, as gguf.quants does. An importance would change nothing that
// matters at 8 bits and is not used.
static void q8_0_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    block_q8_0 *b = blocks;
    for (; n >= 32; n -= 32, x += 32, b++) {
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        float d = amax / 127;
        float inv = d == 0 ? 0 : 1 / d;
        for (int i = 0; i < 32; i++)
            b->q[i] = (int8_t)roundf(clamp_float(x[i] * inv, -127, 127));
        store_f16(b->d, d);
    }
}

const quant_format quant_q8_0 = {
    .name = "q8_0",
    .ggml_type = 8,
    .block_size = 32,
    .block_bytes = sizeof(block_q8_0),
    .sub = 32,
    .dequant = q8_0_dequant,
    .unpack = q8_0_unpack,
    .quantize = q8_0_quantize,
};
