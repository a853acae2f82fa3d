/*
 * quant_q2_k.c: Q2_K, 256 elements in 84 bytes (2.625 bits), sixteen sub-blocks of 16:
 * x = d * scale * q - dmin * min.
 *
 *   byte  0 .. 15    16 .. 79   80 81  82 83
 *         [scales]   [qs    ]   [d  ]  [dmin]
 *   d, dmin f16; scales[s]: scale in the low four bits, min in the high four; qs: 32 bytes for each
 *   half of 128 elements, elements l, l + 32, l + 64, l + 96 in byte l from the lowest bits up.
 */
#include "compute/quant_block.h"
#include "compute/quant_search.h"

typedef struct block_q2_k {
    uint8_t scales[16];
    uint8_t qs[64];
    uint8_t d[2], dmin[2];
} block_q2_k;
_Static_assert(sizeof(block_q2_k) == 84, "Q2_K block");

static inline void q2_k_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q2_k *restrict b)
{
    float d = load_f16(b->d), dmin = load_f16(b->dmin);
    for (int s = 0; s < 16; s++) {
        scale[s] = d * (float)(b->scales[s] & 15);
        min[s] = -(dmin * (float)(b->scales[s] >> 4));
    }
    for (int g = 0; g < 8; g++)
        for (int l = 0; l < 32; l++)
            q[32 * g + l] = (int8_t)(b->qs[32 * (g / 4) + l] >> 2 * (g % 4) & 3);
}
QUANT_DECODERS(q2_k, 256, 16, true)

static void q2_k_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_q2_k *b = blocks;
    for (size_t i = 0; i < n; i += 256, b++) {
        uint8_t q[256], sc[16], mn[16];
        float d, dmin;
        search_block_min(q, sc, mn, &d, &dmin, x + i, weight ? weight + i : NULL, 16, 3, 15);
        store_f16(b->d, d);
        store_f16(b->dmin, dmin);
        for (int s = 0; s < 16; s++)
            b->scales[s] = (uint8_t)(sc[s] | mn[s] << 4);
        for (int half = 0; half < 2; half++)
            for (int l = 0; l < 32; l++) {
                const uint8_t *p = q + 128 * half + l;
                b->qs[32 * half + l] = (uint8_t)(p[0] | p[32] << 2 | p[64] << 4 | p[96] << 6);
            }
    }
}

const quant_format quant_q2_k = {
    .name = "q2_k",
    .ggml_type = 10,
    .block_size = 256,
    .block_bytes = sizeof(block_q2_k),
    .sub = 16,
    .has_min = true,
    .dequant = q2_k_dequant,
    .unpack = q2_k_unpack,
    .quantize = q2_k_quantize,
};
