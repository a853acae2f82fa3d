/*
 * quant_tq.c: TQ1_0 and TQ2_0, 256 elements of -1, 0, 1 under one scale: x = d * (t - 1).
 *
 *   TQ1_0, 54 bytes (1.6875 bits)   0 .. 47   48 .. 51   52 53
 *                                   [qs   ]   [qh    ]   [d  ]
 *   Five trits a byte (four in qh), as the fraction 0.t0 t1 t2 t3 t4 in base 3, times 256 and
 *   rounded up: trit k is the integer part of 3 * frac(byte / 256 * 3^k). The trits k of the first
 *   32 bytes are elements 32 k .. 32 k + 31; of the next 16, 160 + 16 k ..; of qh, 240 + 4 k ...
 *
 *   TQ2_0, 66 bytes (2.0625 bits)   0 .. 63   64 65
 *                                   [qs   ]   [d  ]
 *   32 bytes for each half of 128 elements, elements l, l + 32, l + 64, l + 96 in byte l from the
 *   lowest bits up.
 *   d f16.
 */
#include "compute/quant_block.h"

typedef struct block_tq1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint8_t d[2];
} block_tq1_0;
_Static_assert(sizeof(block_tq1_0) == 54, "TQ1_0 block");

typedef struct block_tq2_0 {
    uint8_t qs[64];
    uint8_t d[2];
} block_tq2_0;
_Static_assert(sizeof(block_tq2_0) == 66, "TQ2_0 block");

// n_trits trits of each of n bytes; trit k of all bytes before trit k + 1.
static inline void trits_unpack(int8_t *restrict q, const uint8_t *restrict p, int n, int n_trits)
{
    static const uint8_t pow3[5] = { 1, 3, 9, 27, 81 };
    for (int k = 0; k < n_trits; k++)
        for (int i = 0; i < n; i++) {
            uint8_t fraction = (uint8_t)(p[i] * pow3[k]);
            q[k * n + i] = (int8_t)((fraction * 3 >> 8) - 1);
        }
}

static inline void tq1_0_unpack_block(int8_t *restrict q, float *restrict scale,
                                      float *restrict min, const block_tq1_0 *restrict b)
{
    (void)min;
    trits_unpack(q, b->qs, 32, 5);
    trits_unpack(q + 160, b->qs + 32, 16, 5);
    trits_unpack(q + 240, b->qh, 4, 4);
    float d = load_f16(b->d);
    for (int s = 0; s < 8; s++)
        scale[s] = d;
}
QUANT_DECODERS(tq1_0, 256, 32, false)

static inline void tq2_0_unpack_block(int8_t *restrict q, float *restrict scale,
                                      float *restrict min, const block_tq2_0 *restrict b)
{
    (void)min;
    for (int g = 0; g < 8; g++)
        for (int l = 0; l < 32; l++)
            q[32 * g + l] = (int8_t)((b->qs[32 * (g / 4) + l] >> 2 * (g % 4) & 3) - 1);
    float d = load_f16(b->d);
    for (int s = 0; s < 8; s++)
        scale[s] = d;
}
QUANT_DECODERS(tq2_0, 256, 32, false)

// d is the largest |x|; t [256] in 0..2. An importance has no say: there is nothing to search in
// files made for models whose weights are ternary.
static float ternary(uint8_t *t, const float *x)
{
    float amax = 0;
    for (int i = 0; i < 256; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    float inv = amax == 0 ? 0 : 1 / amax;
    for (int i = 0; i < 256; i++)
        t[i] = (uint8_t)(roundf(clamp_float(x[i] * inv, -1, 1)) + 1);
    return amax;
}

static void trits_pack(uint8_t *p, const uint8_t *t, int n, int n_trits)
{
    static const uint8_t pow3[5] = { 81, 27, 9, 3, 1 };
    for (int i = 0; i < n; i++) {
        int value = 0;
        for (int k = 0; k < n_trits; k++)
            value += t[k * n + i] * pow3[k];
        p[i] = (uint8_t)((value * 256 + 242) / 243);
    }
}

static void tq1_0_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    block_tq1_0 *b = blocks;
    for (size_t i = 0; i < n; i += 256, b++) {
        uint8_t t[256];
        store_f16(b->d, ternary(t, x + i));
        trits_pack(b->qs, t, 32, 5);
        trits_pack(b->qs + 32, t + 160, 16, 5);
        trits_pack(b->qh, t + 240, 4, 4);
    }
}

static void tq2_0_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    block_tq2_0 *b = blocks;
    for (size_t i = 0; i < n; i += 256, b++) {
        uint8_t t[256];
        store_f16(b->d, ternary(t, x + i));
        for (int half = 0; half < 2; half++)
            for (int l = 0; l < 32; l++) {
                const uint8_t *p = t + 128 * half + l;
                b->qs[32 * half + l] = (uint8_t)(p[0] | p[32] << 2 | p[64] << 4 | p[96] << 6);
            }
    }
}

const quant_format quant_tq1_0 = {
    .name = "tq1_0",
    .ggml_type = 34,
    .block_size = 256,
    .block_bytes = sizeof(block_tq1_0),
    .sub = 32,
    .dequant = tq1_0_dequant,
    .unpack = tq1_0_unpack,
    .quantize = tq1_0_quantize,
};

const quant_format quant_tq2_0 = {
    .name = "tq2_0",
    .ggml_type = 35,
    .block_size = 256,
    .block_bytes = sizeof(block_tq2_0),
    .sub = 32,
    .dequant = tq2_0_dequant,
    .unpack = tq2_0_unpack,
    .quantize = tq2_0_quantize,
};
