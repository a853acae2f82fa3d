/*
 * quant_q4_k.c: Q4_K, 256 elements in 144 bytes (4.5 bits), eight sub-blocks of 32:
 * x = d * scale * q - dmin * min.
 *
 *   byte  0  1  2  3  4 .. 15   16 .. 143
 *         [d ]  [dmin] [scales]  [qs     ]
 *   d, dmin f16; scales: 8 scales and 8 mins of 6 bits (quant_k.h); qs: 32 bytes for each pair of
 *   sub-blocks, the even one in the low four bits.
 */
#include "compute/quant_block.h"
#include "compute/quant_k.h"
#include "compute/quant_search.h"

typedef struct block_q4_k {
    uint8_t d[2], dmin[2];
    uint8_t scales[12];
    uint8_t qs[128];
} block_q4_k;
_Static_assert(sizeof(block_q4_k) == 144, "Q4_K block");

static inline void q4_k_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q4_k *restrict b)
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
            q[64 * g + i] = (int8_t)(b->qs[32 * g + i] & 15);
            q[64 * g + 32 + i] = (int8_t)(b->qs[32 * g + i] >> 4);
        }
}
QUANT_DECODERS(q4_k, 256, 32, true)

static void q4_k_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_q4_k *b = blocks;
    for (size_t i = 0; i < n; i += 256, b++) {
        uint8_t q[256], sc[8], mn[8];
        float d, dmin;
        search_block_min(q, sc, mn, &d, &dmin, x + i, weight ? weight + i : NULL, 32, 15, 63);
        store_f16(b->d, d);
        store_f16(b->dmin, dmin);
        k_scales_pack(b->scales, sc, mn);
        for (int g = 0; g < 4; g++)
            for (int l = 0; l < 32; l++)
                b->qs[32 * g + l] = (uint8_t)(q[64 * g + l] | q[64 * g + 32 + l] << 4);
    }
}

const quant_format quant_q4_k = {
    .name = "q4_k",
    .ggml_type = 12,
    .block_size = 256,
    .block_bytes = sizeof(block_q4_k),
    .sub = 32,
    .has_min = true,
    .dequant = q4_k_dequant,
    .unpack = q4_k_unpack,
    .quantize = q4_k_quantize,
};
