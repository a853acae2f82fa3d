/*
 * quant_iq3.c: IQ3_XXS and IQ3_S, 256 elements as runs of four from a grid of eight magnitudes g,
 * and a sign for each.
 *
 *   IQ3_XXS, 98 bytes (3.0625 bits)   0  1   2 .. 65   66 .. 97
 *                                     [d ]   [qs   ]   [signs ]
 *   x = d * (1/2 + scale) / 2 * (+-g), g = 4, 12, 20, .. 52, 62; qs: 64 grid indices; signs: a
 *   32-bit word for 32 elements: four times seven signs (the eighth makes the number of minus signs
 *   even) and four bits of scale.
 *
 *   IQ3_S, 110 bytes (3.4375 bits)    0  1   2 .. 65   66 .. 73   74 .. 105   106 .. 109
 *                                     [d ]   [qs   ]   [qh    ]   [signs  ]   [scales  ]
 *   x = d * (1 + 2 * scale) * (+-g), g = 1, 3, .. 15; qs: the low eight bits of 64 indices, qh the
 *   ninth; signs: a bit an element; scales: four bits for 32 elements, low nibble first.
 *   d f16.
 */
#include "compute/quant_iq.h"

typedef struct block_iq3_xxs {
    uint8_t d[2];
    uint8_t qs[64];
    uint8_t signs[32];
} block_iq3_xxs;
_Static_assert(sizeof(block_iq3_xxs) == 98, "IQ3_XXS block");

typedef struct block_iq3_s {
    uint8_t d[2];
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
} block_iq3_s;
_Static_assert(sizeof(block_iq3_s) == 110, "IQ3_S block");

// Two runs side by side: eight bytes of 0..7.
static inline uint64_t two_runs(uint16_t first, uint16_t second)
{
    return spread4(first) | (uint64_t)spread4(second) << 32;
}

static inline void iq3_xxs_unpack_block(int8_t *restrict q, float *restrict scale,
                                        float *restrict min, const block_iq3_xxs *restrict b)
{
    (void)min;
    float d = load_f16(b->d);
    for (int s = 0; s < 8; s++) {
        const uint8_t *index = b->qs + 8 * s;
        uint32_t word = load_u32(b->signs + 4 * s);
        scale[s] = d * (0.5f + (float)(word >> 28)) * 0.5f;
        for (int l = 0; l < 4; l++) {
            uint64_t v = two_runs(iq3_xxs_grid[index[2 * l]], iq3_xxs_grid[index[2 * l + 1]]);
            uint64_t top = v & v >> 1 & v >> 2 & BYTES(1); // 7 stands for 62, not 60
            uint64_t g = BYTES(4) + 8 * v + 2 * top;
            store_u64(q + 32 * s + 8 * l, apply_signs(g, even_signs(word >> 7 * l & 127)));
        }
    }
}
QUANT_DECODERS(iq3_xxs, 256, 32, false)

static inline void iq3_s_unpack_block(int8_t *restrict q, float *restrict scale,
                                      float *restrict min, const block_iq3_s *restrict b)
{
    (void)min;
    float d = load_f16(b->d);
    for (int s = 0; s < 8; s++) {
        const uint8_t *index = b->qs + 8 * s;
        uint32_t high = b->qh[s];
        scale[s] = d * (float)(1 + 2 * (b->scales[s / 2] >> 4 * (s % 2) & 15));
        for (int l = 0; l < 4; l++) {
            uint32_t i0 = index[2 * l] | (high >> 2 * l & 1) << 8;
            uint32_t i1 = index[2 * l + 1] | (high >> (2 * l + 1) & 1) << 8;
            uint64_t g = BYTES(1) + 2 * two_runs(iq3_s_grid[i0], iq3_s_grid[i1]);
            store_u64(q + 32 * s + 8 * l, apply_signs(g, b->signs[4 * s + l]));
        }
    }
}
QUANT_DECODERS(iq3_s, 256, 32, false)

const quant_format quant_iq3_xxs = {
    .name = "iq3_xxs",
    .ggml_type = 18,
    .block_size = 256,
    .block_bytes = sizeof(block_iq3_xxs),
    .sub = 32,
    .dequant = iq3_xxs_dequant,
    .unpack = iq3_xxs_unpack,
};

const quant_format quant_iq3_s = {
    .name = "iq3_s",
    .ggml_type = 21,
    .block_size = 256,
    .block_bytes = sizeof(block_iq3_s),
    .sub = 32,
    .dequant = iq3_s_dequant,
    .unpack = iq3_s_unpack,
};
