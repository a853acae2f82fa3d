/*
 * quant_larql_q6_k.c: LARQL's Q6_K, 256 elements in 210 bytes: x = d * sc * (q - 32). The fields
 * are GGUF's, their bits lie in the order of the elements.
 *
 *   byte  0 .. 127   128 .. 191   192 .. 207   208 209
 *         [ql    ]   [qh      ]   [sc      ]   [d    ]
 *   element e: low four bits in ql[e/2] (odd e high), high two in qh[e/4] at bit 2 (e mod 4);
 *   sc[e/16] int8; d f16.
 */
#include "compute/quant_block.h"
#include "compute/quant_larql.h"

typedef struct block_larql_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t sc[16];
    uint8_t d[2];
} block_larql_q6_k;
_Static_assert(sizeof(block_larql_q6_k) == 210, "Q6_K block");

static inline void larql_q6_k_unpack_block(int8_t *restrict q, float *restrict scale,
                                           float *restrict min, const block_larql_q6_k *restrict b)
{
    (void)min;
    for (int e = 0; e < 256; e++) {
        int lo = b->ql[e / 2] >> 4 * (e & 1) & 15, hi = b->qh[e / 4] >> 2 * (e & 3) & 3;
        q[e] = (int8_t)((lo | hi << 4) - 32);
    }
    float d = load_f16(b->d);
    for (int s = 0; s < 16; s++)
        scale[s] = d * (float)b->sc[s];
}
QUANT_DECODERS(larql_q6_k, 256, 16, false)

static void larql_q6_k_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    block_larql_q6_k *b = blocks;
    for (; n >= 256; n -= 256, x += 256, b++) {
        float sub[16], amax = 0;
        memset(b, 0, sizeof *b);
        for (int s = 0; s < 16; s++) {
            sub[s] = 0;
            for (int i = 0; i < 16; i++)
                sub[s] = fabsf(x[16 * s + i]) > sub[s] ? fabsf(x[16 * s + i]) : sub[s];
            amax = sub[s] > amax ? sub[s] : amax;
        }
        float d = amax / (31.0f * 127.0f);
        store_u16(b->d, larql_scale_f16(d));
        for (int s = 0; s < 16; s++) {
            int sc = d > 0 ? (int)clamp_float(roundf(sub[s] / (31.0f * d)), -128, 127) : 0;
            float step = d * (float)sc, inv = fabsf(step) > 1e-10f ? 1.0f / step : 0;
            b->sc[s] = (int8_t)sc;
            for (int e = 16 * s; e < 16 * s + 16; e++) {
                int q = (int)clamp_float(roundf(x[e] * inv), -32, 31) + 32;
                b->ql[e / 2] = (uint8_t)(b->ql[e / 2] | (q & 15) << 4 * (e & 1));
                b->qh[e / 4] = (uint8_t)(b->qh[e / 4] | (q >> 4) << 2 * (e & 3));
            }
        }
    }
}

/* The same numbers in GGUF's order of bits: element 128h + 32p + l has its low bits in byte
 * 64h + l + 32 (p mod 2), high four where p >= 2, its high bits in byte 32h + l at bit 2p. */
void larql_q6_k_to_gguf(void *to, const void *from, size_t n)
{
    const block_larql_q6_k *b = from;
    block_larql_q6_k *out = to;
    for (; n >= 256; n -= 256, b++, out++) {
        *out = *b;
        memset(out->ql, 0, sizeof out->ql);
        memset(out->qh, 0, sizeof out->qh);
        for (int e = 0; e < 256; e++) {
            int h = e / 128, p = e / 32 % 4, l = e % 32;
            int lo = b->ql[e / 2] >> 4 * (e & 1) & 15, hi = b->qh[e / 4] >> 2 * (e & 3) & 3;
            int at = 64 * h + l + 32 * (p & 1);
            out->ql[at] = (uint8_t)(out->ql[at] | lo << 4 * (p >= 2));
            out->qh[32 * h + l] = (uint8_t)(out->qh[32 * h + l] | hi << 2 * p);
        }
    }
}

const quant_format quant_larql_q6_k = {
    .name = "larql_q6_k",
    .ggml_type = -1,
    .block_size = 256,
    .block_bytes = sizeof(block_larql_q6_k),
    .sub = 16,
    .dequant = larql_q6_k_dequant,
    .unpack = larql_q6_k_unpack,
    .quantize = larql_q6_k_quantize,
};
