/*
 * quant_q5_k.c: Q5_K, 256 elements in 176 bytes (5.5 bits), eight sub-blocks of 32:
 * x = d * scale * q - dmin * min.
 *
 *   byte  0  1  2  3  4 .. 15   16 .. 47   48 .. 175
 *         [d ]  [dmin] [scales]  [qh    ]   [qs     ]
 *   d, dmin f16; scales: 8 scales and 8 mins of 6 bits (quant_k.h); qh[i]: bit s is the fifth bit
 *   of element i of sub-block s; qs: 32 bytes for each pair of sub-blocks, the even one in the low
 *   bits.
 */
#include "compute/quant_block.h"
#include "compute/quant_k.h"
#include "compute/quant_search.h"

typedef struct block_q5_k {
    uint8_t d[2], dmin[2];
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} block_q5_k;
_Static_assert(sizeof(block_q5_k) == 176, "Q5_K block");

static inline void q5_k_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q5_k *restrict b)
{
    uint8_t sc[8], mn[8];
    float d = load_f16(b->d), dmin = load_f16(b->dmin);
    k_scales_unpack(sc, mn, b->scales);
    for (int s = 0; s < 8; s++) {
        scale[s] = d * (float)sc[s];
        min[s] = -(dmin * (float)mn[s]);
    }
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < 32; i++) {
            int high = b->qh[i] >> 2 * g;
            q[64 * g + i] = (int8_t)((b->qs[32 * g + i] & 15) | (high & 1) << 4);
            q[64 * g + 32 + i] = (int8_t)(b->qs[32 * g + i] >> 4 | (high & 2) << 3);
        }
}
QUANT_DECODERS(q5_k, 256, 32, true)

static void q5_k_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_q5_k *b = blocks;
    for (size_t i = 0; i < n; i += 256, b++) {
        uint8_t q[256], sc[8], mn[8];
        float d, dmin;
        search_block_min(q, sc, mn, &d, &dmin, x + i, weight ? weight + i : NULL, 32, 31, 63);
        store_f16(b->d, d);
        store_f16(b->dmin, dmin);
        k_scales_pack(b->scales, sc, mn);
        memset(b->qh, 0, sizeof(b->qh));
        for (int g = 0; g < 4; g++)
            for (int l = 0; l < 32; l++) {
                int even = q[64 * g + l], odd = q[64 * g + 32 + l];
                b->qs[32 * g + l] = (uint8_t)((even & 15) | (odd & 15) << 4);
                b->qh[l] = (uint8_t)(b->qh[l] | (even >> 4) << 2 * g | (odd >> 4) << (2 * g + 1));
            }
    }
}

const quant_format quant_q5_k = {
    .name = "q5_k",
    .ggml_type = 13,
    .block_size = 256,
    .block_bytes = sizeof(block_q5_k),
    .sub = 32,
    .has_min = true,
    .dequant = q5_k_dequant,
    .unpack = q5_k_unpack,
    .quantize = q5_k_quantize,
};
