/*
 * quant_iq2.c: IQ2_XXS, IQ2_XS and IQ2_S, 256 elements as runs of eight from a grid with values
 * g = 8, 25, 43, and a sign for each: x = d * (1/2 + scale) / 4 * (+-g).
 *
 *   IQ2_XXS, 66 bytes (2.0625 bits)   0  1   2 .. 65
 *                                     [d ]   [qs   ]
 *   qs: 8 bytes for 32 elements: four grid indices; then a 32-bit word of four times seven signs
 *   and four bits of scale.
 *
 *   IQ2_XS, 74 bytes (2.3125 bits)    0  1   2 .. 65   66 .. 73
 *                                     [d ]   [qs   ]   [scales]
 *   qs: a 16-bit word a run: nine bits index, seven signs; scales: four bits for 16 elements.
 *
 *   IQ2_S, 82 bytes (2.5625 bits)     0  1   2 .. 33   34 .. 65   66 .. 73   74 .. 81
 *                                     [d ]   [qs   ]   [signs ]   [qh    ]   [scales]
 *   qs: the low eight bits of a run's index, qh the high two (four runs a byte); signs: eight a
 *   run; scales: four bits for 16 elements.
 *
 * In all of them d is f16, and of two nibbles the low one comes first. Where seven signs are
 * stored, the eighth makes the number of minus signs even.
 */
#include "compute/quant_iq.h"

typedef struct block_iq2_xxs {
    uint8_t d[2];
    uint8_t qs[64];
} block_iq2_xxs;
_Static_assert(sizeof(block_iq2_xxs) == 66, "IQ2_XXS block");

typedef struct block_iq2_xs {
    uint8_t d[2];
    uint8_t qs[64];
    uint8_t scales[8];
} block_iq2_xs;
_Static_assert(sizeof(block_iq2_xs) == 74, "IQ2_XS block");

typedef struct block_iq2_s {
    uint8_t d[2];
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
} block_iq2_s;
_Static_assert(sizeof(block_iq2_s) == 82, "IQ2_S block");

// 0, 1, 2 in the grid word are 8, 25, 43: 8 + 17 v, and one more for 2.
static inline void iq2_run(int8_t *q, uint16_t run, uint8_t signs)
{
    uint64_t v = spread2(run);
    store_u64(q, apply_signs(BYTES(8) + 17 * v + (v >> 1 & BYTES(1)), signs));
}

static inline void iq2_scales16(float *restrict scale, float d, const uint8_t *restrict scales)
{
    for (int s = 0; s < 16; s++)
        scale[s] = d * (0.5f + (float)(scales[s / 2] >> 4 * (s % 2) & 15)) * 0.25f;
}

static inline void iq2_xxs_unpack_block(int8_t *restrict q, float *restrict scale,
                                        float *restrict min, const block_iq2_xxs *restrict b)
{
    (void)min;
    float d = load_f16(b->d);
    for (int s = 0; s < 8; s++) {
        const uint8_t *index = b->qs + 8 * s;
        uint32_t word = load_u32(index + 4);
        scale[s] = d * (0.5f + (float)(word >> 28)) * 0.25f;
        for (int l = 0; l < 4; l++)
            iq2_run(q + 32 * s + 8 * l, iq2_xxs_grid[index[l]], even_signs(word >> 7 * l & 127));
    }
}
QUANT_DECODERS(iq2_xxs, 256, 32, false)

static inline void iq2_xs_unpack_block(int8_t *restrict q, float *restrict scale,
                                       float *restrict min, const block_iq2_xs *restrict b)
{
    (void)min;
    iq2_scales16(scale, load_f16(b->d), b->scales);
    for (int r = 0; r < 32; r++) {
        uint32_t word = load_u16(b->qs + 2 * r);
        iq2_run(q + 8 * r, iq2_xs_grid[word & 511], even_signs(word >> 9));
    }
}
QUANT_DECODERS(iq2_xs, 256, 16, false)

static inline void iq2_s_unpack_block(int8_t *restrict q, float *restrict scale,
                                      float *restrict min, const block_iq2_s *restrict b)
{
    (void)min;
    iq2_scales16(scale, load_f16(b->d), b->scales);
    for (int r = 0; r < 32; r++) {
        uint32_t high = (uint32_t)b->qh[r / 4] >> 2 * (r % 4) & 3;
        iq2_run(q + 8 * r, iq2_s_grid[b->qs[r] | high << 8], b->signs[r]);
    }
}
QUANT_DECODERS(iq2_s, 256, 16, false)

const quant_format quant_iq2_xxs = {
    .name = "iq2_xxs",
    .ggml_type = 16,
    .block_size = 256,
    .block_bytes = sizeof(block_iq2_xxs),
    .sub = 32,
    .dequant = iq2_xxs_dequant,
    .unpack = iq2_xxs_unpack,
};

const quant_format quant_iq2_xs = {
    .name = "iq2_xs",
    .ggml_type = 17,
    .block_size = 256,
    .block_bytes = sizeof(block_iq2_xs),
    .sub = 16,
    .dequant = iq2_xs_dequant,
    .unpack = iq2_xs_unpack,
};

const quant_format quant_iq2_s = {
    .name = "iq2_s",
    .ggml_type = 22,
    .block_size = 256,
    .block_bytes = sizeof(block_iq2_s),
    .sub = 16,
    .dequant = iq2_s_dequant,
    .unpack = iq2_s_unpack,
};
