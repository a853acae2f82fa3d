/*
 * quant_iq4.c: IQ4_NL and IQ4_XS, elements of 4 bits that name one of 16 unevenly spaced values,
 * more of them near zero, where weights are.
 *
 *   IQ4_NL, 18 bytes for 32      0  1   2 .. 17        x = d * value[q]
 *                                [d ]   [qs   ]
 *   IQ4_XS, 136 bytes for 256    0  1   2  3   4 .. 7   8 .. 135
 *                                [d ]   [sh]   [sl  ]   [qs    ]
 *                                x = d * (scale - 32) * value[q] in sub-blocks of 32
 *   d f16; scale s: low four bits in nibble s of sl (low half first), high two in bits 2 s of sh;
 *   qs: 16 bytes for 32 elements, element j in the low four bits, element j + 16 in the high ones.
 */
#include "compute/quant_block.h"
#include "compute/quant_search.h"

typedef struct block_iq4_nl {
    uint8_t d[2];
    uint8_t qs[16];
} block_iq4_nl;
_Static_assert(sizeof(block_iq4_nl) == 18, "IQ4_NL block");

typedef struct block_iq4_xs {
    uint8_t d[2];
    uint8_t scales_h[2];
    uint8_t scales_l[4];
    uint8_t qs[128];
} block_iq4_xs;
_Static_assert(sizeof(block_iq4_xs) == 136, "IQ4_XS block");

static const int8_t iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113 };
static const code_range iq4_range = {
    .lo = -127, .hi = 113, .table = iq4_values, .step = 1.5f, .n_steps = 10
};

static inline void iq4_unpack(int8_t *restrict q, const uint8_t *restrict qs)
{
    for (int j = 0; j < 16; j++) {
        q[j] = iq4_values[qs[j] & 15];
        q[j + 16] = iq4_values[qs[j] >> 4];
    }
}

static inline void iq4_nl_unpack_block(int8_t *restrict q, float *restrict scale,
                                       float *restrict min, const block_iq4_nl *restrict b)
{
    (void)min;
    iq4_unpack(q, b->qs);
    scale[0] = load_f16(b->d);
}
QUANT_DECODERS(iq4_nl, 32, 32, false)

static inline void iq4_xs_unpack_block(int8_t *restrict q, float *restrict scale,
                                       float *restrict min, const block_iq4_xs *restrict b)
{
    (void)min;
    float d = load_f16(b->d);
    int high = load_u16(b->scales_h);
    for (int s = 0; s < 8; s++) {
        int low = b->scales_l[s / 2] >> 4 * (s % 2) & 15;
        scale[s] = d * (float)((low | (high >> 2 * s & 3) << 4) - 32);
        iq4_unpack(q + 32 * s, b->qs + 16 * s);
    }
}
QUANT_DECODERS(iq4_xs, 256, 32, false)

static void iq4_pack(uint8_t *qs, const int8_t *q)
{
    uint8_t index[32] = { 0 };
    for (int k = 0; k < 15; k++)
        for (int i = 0; i < 32; i++)
            index[i] = (uint8_t)(index[i] + (q[i] > iq4_values[k]));
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)(index[j] | index[j + 16] << 4);
}

static void iq4_nl_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_iq4_nl *b = blocks;
    for (size_t i = 0; i < n; i += 32, b++) {
        int8_t q[32];
        float w[32];
        search_weights(w, x + i, weight ? weight + i : NULL, 32);
        store_f16(b->d, search_scale(q, x + i, w, 32, &iq4_range));
        search_codes(q, load_f16(b->d), x + i, w, 32, &iq4_range);
        iq4_pack(b->qs, q);
    }
}

static void iq4_xs_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    block_iq4_xs *b = blocks;
    for (size_t i = 0; i < n; i += 256, b++) {
        int8_t q[256], sc[8];
        float d = search_block(q, sc, x + i, weight ? weight + i : NULL, 32, &iq4_range, -32, 31);
        int high = 0;
        store_f16(b->d, d);
        memset(b->scales_l, 0, sizeof(b->scales_l));
        for (int s = 0; s < 8; s++) {
            int u = sc[s] + 32;
            b->scales_l[s / 2] = (uint8_t)(b->scales_l[s / 2] | (u & 15) << 4 * (s % 2));
            high |= (u >> 4) << 2 * s;
            iq4_pack(b->qs + 16 * s, q + 32 * s);
        }
        store_u16(b->scales_h, (uint16_t)high);
    }
}

const quant_format quant_iq4_nl = {
    .name = "iq4_nl",
    .ggml_type = 20,
    .block_size = 32,
    .block_bytes = sizeof(block_iq4_nl),
    .sub = 32,
    .dequant = iq4_nl_dequant,
    .unpack = iq4_nl_unpack,
    .quantize = iq4_nl_quantize,
};

const quant_format quant_iq4_xs = {
    .name = "iq4_xs",
    .ggml_type = 23,
    .block_size = 256,
    .block_bytes = sizeof(block_iq4_xs),
    .sub = 32,
    .dequant = iq4_xs_dequant,
    .unpack = iq4_xs_unpack,
    .quantize = iq4_xs_quantize,
};
