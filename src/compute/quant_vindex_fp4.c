/*
 * quant_vindex_fp4.c: the FP4 of vindex files, 256 elements in 137 bytes: x = v * sub * block / 6.
 *
 *   byte  0 .. 127   128 .. 135   136
 *         [v     ]   [sub     ]   [block]
 *   v: e2m1, element 2k low and 2k + 1 high in byte k; sub: e4m3, one for 32 elements; block: e4m3.
 * The integers of unpack are twice the e2m1 values, the scales half.
 */
#include "compute/quant_block.h"
#include "compute/quant_larql.h"

typedef struct block_vindex_fp4 {
    uint8_t v[128];
    uint8_t sub[8];
    uint8_t block;
} block_vindex_fp4;
_Static_assert(sizeof(block_vindex_fp4) == 137, "FP4 block");

static inline void vindex_fp4_unpack_block(int8_t *restrict q, float *restrict scale,
                                           float *restrict min, const block_vindex_fp4 *restrict b)
{
    static const int8_t doubled[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
    (void)min;
    for (int k = 0; k < 128; k++) {
        q[2 * k] = doubled[b->v[k] & 15];
        q[2 * k + 1] = doubled[b->v[k] >> 4];
    }
    float block = e4m3_to_f32(b->block);
    for (int s = 0; s < 8; s++)
        scale[s] = b->block ? e4m3_to_f32(b->sub[s]) * block / 6 * 0.5f : 0;
}
QUANT_DECODERS(vindex_fp4, 256, 32, false)

static float largest(const float *x, int n)
{
    float amax = 0;
    for (int i = 0; i < n; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    return amax;
}

static void vindex_fp4_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    block_vindex_fp4 *b = blocks;
    for (; n >= 256; n -= 256, x += 256, b++) {
        memset(b, 0, sizeof *b);
        b->block = e4m3_from_f32(largest(x, 256));
        float block = e4m3_to_f32(b->block);
        for (int s = 0; block > 0 && s < 8; s++) {
            b->sub[s] = e4m3_from_f32(largest(x + 32 * s, 32) / block);
            float step = e4m3_to_f32(b->sub[s]) * block;
            if (step == 0) continue; // the scale's byte stays
            float factor = 6 / step;
            for (int i = 0; i < 32; i++)
                b->v[16 * s + i / 2] =
                    (uint8_t)(b->v[16 * s + i / 2] | e2m1_from_f32(x[32 * s + i] * factor)
                                                         << 4 * (i & 1));
        }
    }
}

const quant_format quant_vindex_fp4 = {
    .name = "vindex_fp4",
    .ggml_type = -1,
    .block_size = 256,
    .block_bytes = sizeof(block_vindex_fp4),
    .sub = 32,
    .dequant = vindex_fp4_dequant,
    .unpack = vindex_fp4_unpack,
    .quantize = vindex_fp4_quantize,
};
