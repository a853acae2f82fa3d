/*
 * quant_q6_k.c: Q6_K, 256 elements in 210 bytes (6.5625 bits), sixteen sub-blocks of 16:
 * x = d * scale * (q - 32).
 *
 *   byte  0 .. 127   128 .. 191   192 .. 207   208 209
 *         [ql    ]   [qh      ]   [scales  ]   [d    ]
 *   d f16; scales int8. Each half of 128 elements has 64 bytes of ql and 32 of qh; its elements l,
 *   l + 32, l + 64, l + 96 have their high two bits in qh[l], from the lowest up, and their low
 *   four in ql[l] low, ql[l + 32] low, ql[l] high, ql[l + 32] high.
 */
#include "compute/quant_block.h"
#include "compute/quant_search.h"

typedef struct block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint8_t d[2];
} block_q6_k;
_Static_assert(sizeof(block_q6_k) == 210, "Q6_K block");

static inline void q6_k_unpack_block(int8_t *restrict q, float *restrict scale, float *restrict min,
                                     const block_q6_k *restrict b)
{
    (void)min;
    float d = load_f16(b->d);
    for (int s = 0; s < 16; s++)
        scale[s] = d * (float)b->scales[s];
    for (int half = 0; half < 2; half++) {
        const uint8_t *ql = b->ql + 64 * half, *qh = b->qh + 32 * half;
        int8_t *y = q + 128 * half;
        for (int l = 0; l < 32; l++) {
            y[l] = (int8_t)(((ql[l] & 15) | (qh[l] & 3) << 4) - 32);
            y[l + 32] = (int8_t)(((ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4) - 32);
            y[l + 64] = (int8_t)((ql[l] >> 4 | (qh[l] >> 4 & 3) << 4) - 32);
            y[l + 96] = (int8_t)((ql[l + 32] >> 4 | (qh[l] >> 6) << 4) - 32);
        }
    }
}
QUANT_DECODERS(q6_k, 256, 16, false)

static void q6_k_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    static const code_range range = { .lo = -32, .hi = 31, .step = 0.1f, .n_steps = 9 };
    block_q6_k *b = blocks;
    for (size_t i = 0; i < n; i += 256, b++) {
        int8_t q[256];
        float d =
            search_block(q, b->scales, x + i, weight ? weight + i : NULL, 16, &range, -128, 127);
        store_f16(b->d, d);
        for (int half = 0; half < 2; half++) {
            uint8_t *ql = b->ql + 64 * half, *qh = b->qh + 32 * half;
            for (int l = 0; l < 32; l++) {
                const int8_t *p = q + 128 * half + l;
                int a = p[0] + 32, c = p[32] + 32, e = p[64] + 32, g = p[96] + 32;
                ql[l] = (uint8_t)((a & 15) | (e & 15) << 4);
                ql[l + 32] = (uint8_t)((c & 15) | (g & 15) << 4);
                qh[l] = (uint8_t)(a >> 4 | (c >> 4) << 2 | (e >> 4) << 4 | (g >> 4) << 6);
            }
        }
    }
}

const quant_format quant_q6_k = {
    .name = "q6_k",
    .ggml_type = 14,
    .block_size = 256,
    .block_bytes = sizeof(block_q6_k),
    .sub = 16,
    .dequant = q6_k_dequant,
    .unpack = q6_k_unpack,
    .quantize = q6_k_quantize,
};
