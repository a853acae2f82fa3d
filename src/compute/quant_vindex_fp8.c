/*
 * quant_vindex_fp8.c: the FP8 of vindex files, 256 elements in 257 bytes: x = v * block, both e4m3.
 * A format of floats: no integers, its dots are made in float32.
 *
 *   byte  0 .. 255   256
 *         [v     ]   [block]
 */
#include "compute/quant_block.h"
#include "compute/quant_larql.h"

static void vindex_fp8_dequant(float *restrict y, const void *blocks, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i + 256 <= n; i += 256, b += 257) {
        float block = e4m3_to_f32(b[256]);
        for (int k = 0; k < 256; k++)
            y[i + (size_t)k] = b[256] ? e4m3_to_f32(b[k]) * block : 0;
    }
}

static void vindex_fp8_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    uint8_t *b = blocks;
    for (; n >= 256; n -= 256, x += 256, b += 257) {
        float amax = 0;
        for (int i = 0; i < 256; i++)
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        memset(b, 0, 257);
        b[256] = e4m3_from_f32(amax);
        float block = e4m3_to_f32(b[256]);
        for (int i = 0; block > 0 && i < 256; i++)
            b[i] = e4m3_from_f32(x[i] / block);
    }
}

const quant_format quant_vindex_fp8 = {
    .name = "vindex_fp8",
    .ggml_type = -1,
    .block_size = 256,
    .block_bytes = 257,
    .dequant = vindex_fp8_dequant,
    .quantize = vindex_fp8_quantize,
};
