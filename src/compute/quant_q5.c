/*
 * quant_q5.c: Q5_0 and Q5_1, 32 elements of 5 bits.
 *
 *   Q5_0, 22 bytes   0  1  2 .. 5  6 .. 21              x = d * (q - 16)
 *                    [d ]  [qh  ]  [qs   ]
 *   Q5_1, 24 bytes   0  1  2  3  4 .. 7  8 .. 23        x = d * q + m
 *                    [d ]  [m ]  [qh  ]  [qs   ]
 *   d, m f16; qs[j]: low four bits of element j in the low half, of element j + 16 in the high
 *   half; qh: a little-endian word, bit j is the fifth bit of element j.
 */
#include "compute/quant_block.h"
#include "compute/quant_search.h"

typedef struct block_q5_0 {
    uint8_t d[2];
    uint8_t qh[4];
    uint8_t qs[16];
} block_q5_0;
_Static_assert(sizeof(block_q5_0) == 22, "Q5_0 block");

typedef struct block_q5_1 {
    uint8_t d[2], m[2];
    uint8_t qh[4];
    uint8_t qs[16];
} block_q5_1;
_Static_assert(sizeof(block_q5_1) == 24, "Q5_1 block");

// Eight elements at a time in the bytes of a word; with `centred` they are 16 less: a clear fifth
// bit is then a negative number's high half.
static inline void unpack5(int8_t *restrict q, const uint8_t *restrict qh,
                           const uint8_t *restrict qs, bool centred)
{
    for (int g = 0; g < 4; g++) {
        uint64_t low = load_u64(qs + 8 * (g % 2)) >> 4 * (g / 2) & BYTES(15);
        uint64_t fifth = spread_bits(qh[g]);
        store_u64(q + 8 * g, low | (centred ? (fifth ^ BYTES(1)) * 0xf0 : fifth << 4));
    }
}

static inline void q5_0_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q5_0 *restrict b)
{
    (void)min;
    unpack5(q, b->qh, b->qs, true);
    scale[0] = load_f16(b->d);
}
QUANT_DECODERS(q5_0, 32, 32, false)

static inline void q5_1_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q5_1 *restrict b)
{
    unpack5(q, b->qh, b->qs, false);
    scale[0] = load_f16(b->d);
    min[0] = load_f16(b->m);
}
QUANT_DECODERS(q5_1, 32, 32, true)

static void pack5(uint8_t *qh, uint8_t *qs, const uint8_t *q)
{
    uint32_t high = 0;
    for (int j = 0; j < 32; j++)
        high |= (uint32_t)(q[j] >> 4) << j;
    store_u32(qh, high);
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
}

static void q5_0_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_q5_0 *b = blocks;
    for (size_t i = 0; i < n; i += 32, b++) {
        uint8_t q[32];
        float d = search_legacy(q, x + i, weight ? weight + i : NULL, 16);
        store_f16(b->d, d);
        pack5(b->qh, b->qs, q);
    }
}

static void q5_1_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_q5_1 *b = blocks;
    for (size_t i = 0; i < n; i += 32, b++) {
        uint8_t q[32];
        float m, d = search_legacy_min(q, &m, x + i, weight ? weight + i : NULL, 31);
        store_f16(b->d, d);
        store_f16(b->m, m);
        pack5(b->qh, b->qs, q);
    }
}

const quant_format quant_q5_0 = {
    .name = "q5_0",
    .ggml_type = 6,
    .block_size = 32,
    .block_bytes = sizeof(block_q5_0),
    .sub = 32,
    .dequant = q5_0_dequant,
    .unpack = q5_0_unpack,
    .quantize = q5_0_quantize,
};

const quant_format quant_q5_1 = {
    .name = "q5_1",
    .ggml_type = 7,
    .block_size = 32,
    .block_bytes = sizeof(block_q5_1),
    .sub = 32,
    .has_min = true,
    .dequant = q5_1_dequant,
    .unpack = q5_1_unpack,
    .quantize = q5_1_quantize,
};
