/*
 * quant_fp4.c: MXFP4 and NVFP4, elements of 4-bit floats (e2m1: sign, two bits of exponent, one of
 * mantissa) under 8-bit scales. The integers of unpack are twice the e2m1 values, the scales half.
 *
 *   MXFP4, 17 bytes for 32      0    1 .. 16
 *                              [e]   [qs   ]
 *   e: the scale 2^(e - 127) (OCP Microscaling Formats 1.0, but 255 is no NaN here);
 *   qs[j]: element j in the low four bits, element j + 16 in the high ones.
 *
 *   NVFP4, 36 bytes for 64      0 .. 3   4 .. 35
 *                              [d    ]   [qs   ]
 *   d[s]: the scale of elements 16 s .. 16 s + 15 as e4m3 without sign (0x7f: zero);
 *   qs: 8 bytes for each of them, element j low, element j + 8 high.
 */
#include "compute/quant_block.h"
#include "compute/quant_search.h"

typedef struct block_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
} block_mxfp4;
_Static_assert(sizeof(block_mxfp4) == 17, "MXFP4 block");

typedef struct block_nvfp4 {
    uint8_t d[4];
    uint8_t qs[32];
} block_nvfp4;
_Static_assert(sizeof(block_nvfp4) == 36, "NVFP4 block");

static const int8_t e2m1_doubled[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

// 2^(e - 128)
static float e8m0_half(uint8_t e)
{
    return f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

// Half of an e4m3 number (bias 7); the sign bit is not looked at.
static float e4m3_half(uint8_t x)
{
    uint32_t exp = x >> 3 & 15, man = x & 7;
    if (x == 0x7f) return 0;
    if (exp == 0) return (float)man * 0x1p-10f;
    return f32_from_bits((exp + 127 - 8) << 23 | man << 20);
}

static inline void mxfp4_unpack_block(int8_t *restrict q, float *restrict scale,
                                      float *restrict min, const block_mxfp4 *restrict b)
{
    (void)min;
    for (int j = 0; j < 16; j++) {
        q[j] = e2m1_doubled[b->qs[j] & 15];
        q[j + 16] = e2m1_doubled[b->qs[j] >> 4];
    }
    scale[0] = e8m0_half(b->e);
}
QUANT_DECODERS(mxfp4, 32, 32, false)

static inline void nvfp4_unpack_block(int8_t *restrict q, float *restrict scale,
                                      float *restrict min, const block_nvfp4 *restrict b)
{
    (void)min;
    for (int s = 0; s < 4; s++) {
        for (int j = 0; j < 8; j++) {
            q[16 * s + j] = e2m1_doubled[b->qs[8 * s + j] & 15];
            q[16 * s + j + 8] = e2m1_doubled[b->qs[8 * s + j] >> 4];
        }
        scale[s] = e4m3_half(b->d[s]);
    }
}
QUANT_DECODERS(nvfp4, 64, 16, false)

// The nearest codes under scale e, the lower one of two as near; returns the error, weighted by w.
static float mxfp4_codes(uint8_t *code, uint8_t e, const float *x, const float *w)
{
    float scale = e8m0_half(e), total = 0;
    for (int i = 0; i < 32; i++) {
        float least = INFINITY;
        code[i] = 0;
        for (int k = 0; k < 16; k++) {
            float err = fabsf(scale * (float)e2m1_doubled[k] - x[i]);
            if (err < least) least = err, code[i] = (uint8_t)k;
        }
        total += w[i] * least * least;
    }
    return total;
}

// The exponent puts the largest element between 4 and 8 (codes end at 6). It is that of
// gguf.quants: floor(log2) in float32, which rounds up just below large powers of two. With an
// importance its neighbours are tried too.
static uint8_t mxfp4_exponent(const float *x, const float *importance)
{
    float amax = 0, least = INFINITY, w[32];
    for (int i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    int start = trunc_clamp(amax > 0 ? floorf((float)log2(amax)) + 125 : 0, 0, 254), best = start;
    if (!importance) return (uint8_t)start;
    search_weights(w, x, importance, 32);
    for (int e = start - 1; e <= start + 1; e++) {
        uint8_t code[32];
        if (e < 0 || e > 254) continue;
        float err = mxfp4_codes(code, (uint8_t)e, x, w);
        if (err < least) least = err, best = e;
    }
    return (uint8_t)best;
}

static void mxfp4_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_mxfp4 *b = blocks;
    for (size_t i = 0; i < n; i += 32, b++) {
        static const float no_matter[32]; // the error is not looked at
        uint8_t code[32];
        b->e = mxfp4_exponent(x + i, weight ? weight + i : NULL);
        mxfp4_codes(code, b->e, x + i, no_matter);
        for (int j = 0; j < 16; j++)
            b->qs[j] = (uint8_t)(code[j] | code[j + 16] << 4);
    }
}

const quant_format quant_mxfp4 = {
    .name = "mxfp4",
    .ggml_type = 39,
    .block_size = 32,
    .block_bytes = sizeof(block_mxfp4),
    .sub = 32,
    .dequant = mxfp4_dequant,
    .unpack = mxfp4_unpack,
    .quantize = mxfp4_quantize,
};

const quant_format quant_nvfp4 = {
    .name = "nvfp4",
    .ggml_type = 40,
    .block_size = 64,
    .block_bytes = sizeof(block_nvfp4),
    .sub = 16,
    .dequant = nvfp4_dequant,
    .unpack = nvfp4_unpack,
};
