/*
 * quant_q4.c: Q4_0 and Q4_1, 32 elements of 4 bits.
 *
 *   Q4_0, 18 bytes   0  1  2 .. 17              x = d * (q - 8)
 *                    [d ]  [qs   ]
 *   Q4_1, 20 bytes   0  1  2  3  4 .. 19        x = d * q + m
 *                    [d ]  [m ]  [qs   ]
 *   d, m f16; qs[j]: element j in the low four bits, element j + 16 in the high ones.
 */
#include "compute/quant_block.h"
#include "compute/quant_search.h"

typedef struct block_q4_0 {
    uint8_t d[2];
    uint8_t qs[16];
} block_q4_0;
_Static_assert(sizeof(block_q4_0) == 18, "Q4_0 block");

typedef struct block_q4_1 {
    uint8_t d[2], m[2];
    uint8_t qs[16];
} block_q4_1;
_Static_assert(sizeof(block_q4_1) == 20, "Q4_1 block");

static inline void q4_0_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q4_0 *restrict b)
{
    (void)min;
    for (int j = 0; j < 16; j++) {
        q[j] = (int8_t)((b->qs[j] & 15) - 8);
        q[j + 16] = (int8_t)((b->qs[j] >> 4) - 8);
    }
    scale[0] = load_f16(b->d);
}
QUANT_DECODERS(q4_0, 32, 32, false)

static inline void q4_1_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q4_1 *restrict b)
{
    for (int j = 0; j < 16; j++) {
        q[j] = (int8_t)(b->qs[j] & 15);
        q[j + 16] = (int8_t)(b->qs[j] >> 4);
    }
    scale[0] = load_f16(b->d);
    min[0] = load_f16(b->m);
}
QUANT_DECODERS(q4_1, 32, 32, true)

static void pack_nibbles(uint8_t *qs, const uint8_t *q)
{
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)(q[j] | q[j + 16] << 4);
}

static void q4_0_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_q4_0 *b = blocks;
    for (size_t i = 0; i < n; i += 32, b++) {
        uint8_t q[32];
        float d = search_legacy(q, x + i, weight ? weight + i : NULL, 8);
        store_f16(b->d, d);
        pack_nibbles(b->qs, q);
    }
}

static void q4_1_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_q4_1 *b = blocks;
    for (size_t i = 0; i < n; i += 32, b++) {
        uint8_t q[32];
        float m, d = search_legacy_min(q, &m, x + i, weight ? weight + i : NULL, 15);
        store_f16(b->d, d);
        store_f16(b->m, m);
        pack_nibbles(b->qs, q);
    }
}

const quant_format quant_q4_0 = {
    .name = "q4_0",
    .ggml_type = 2,
    .block_size = 32,
    .block_bytes = sizeof(block_q4_0),
    .sub = 32,
    .dequant = q4_0_dequant,
    .unpack = q4_0_unpack,
    .quantize = q4_0_quantize,
};

const quant_format quant_q4_1 = {
    .name = "q4_1",
    .ggml_type = 3,
    .block_size = 32,
    .block_bytes = sizeof(block_q4_1),
    .sub = 32,
    .has_min = true,
    .dequant = q4_1_dequant,
    .unpack = q4_1_unpack,
    .quantize = q4_1_quantize,
};
