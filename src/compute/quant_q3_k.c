/*
 * quant_q3_k.c: Q3_K, 256 elements in 110 bytes (3.4375 bits), sixteen sub-blocks of 16:
 * x = d * (scale - 32) * (q - 4).
 *
 *   byte  0 .. 31   32 .. 95   96 .. 107   108 109
 *         [hmask]   [qs    ]   [scales ]   [d    ]
 *   d f16; hmask[l]: bit g is the third bit of element 32 g + l; qs as in Q2_K: the low two bits;
 *   scales, 6 bits each: scale s has its low four bits in byte s % 8 (low half for s < 8), its high
 *   two in byte 8 + s % 4, from the lowest up.
 */
#include "compute/quant_block.h"
#include "compute/quant_search.h"

typedef struct block_q3_k {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint8_t d[2];
} block_q3_k;
_Static_assert(sizeof(block_q3_k) == 110, "Q3_K block");

static inline void q3_k_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q3_k *restrict b)
{
    (void)min;
    float d = load_f16(b->d);
    for (int s = 0; s < 16; s++) {
        int low = b->scales[s % 8] >> 4 * (s / 8) & 15;
        int high = b->scales[8 + s % 4] >> 2 * (s / 4) & 3;
        scale[s] = d * (float)((low | high << 4) - 32);
    }
    for (int g = 0; g < 8; g++)
        for (int l = 0; l < 32; l++) {
            int low = b->qs[32 * (g / 4) + l] >> 2 * (g % 4) & 3;
            q[32 * g + l] = (int8_t)((low | (b->hmask[l] >> g & 1) << 2) - 4);
        }
}
QUANT_DECODERS(q3_k, 256, 16, false)

static void q3_k_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    static const code_range range = { .lo = -4, .hi = 3, .step = 0.1f, .n_steps = 12 };
    block_q3_k *b = blocks;
    for (size_t i = 0; i < n; i += 256, b++) {
        int8_t q[256], sc[16];
        float d = search_block(q, sc, x + i, weight ? weight + i : NULL, 16, &range, -32, 31);
        store_f16(b->d, d);
        memset(b->scales, 0, sizeof(b->scales));
        for (int s = 0; s < 16; s++) {
            int u = sc[s] + 32;
            b->scales[s % 8] = (uint8_t)(b->scales[s % 8] | (u & 15) << 4 * (s / 8));
            b->scales[8 + s % 4] = (uint8_t)(b->scales[8 + s % 4] | (u >> 4) << 2 * (s / 4));
        }
        memset(b->hmask, 0, sizeof(b->hmask));
        memset(b->qs, 0, sizeof(b->qs));
        for (int g = 0; g < 8; g++)
            for (int l = 0; l < 32; l++) {
                int u = q[32 * g + l] + 4;
                uint8_t *low = &b->qs[32 * (g / 4) + l];
                *low = (uint8_t)(*low | (u & 3) << 2 * (g % 4));
                b->hmask[l] = (uint8_t)(b->hmask[l] | (u >> 2) << g);
            }
    }
}

const quant_format quant_q3_k = {
    .name = "q3_k",
    .ggml_type = 11,
    .block_size = 256,
    .block_bytes = sizeof(block_q3_k),
    .sub = 16,
    .dequant = q3_k_dequant,
    .unpack = q3_k_unpack,
    .quantize = q3_k_quantize,
};
