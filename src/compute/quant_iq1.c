/*
 * quant_iq1.c: IQ1_S and IQ1_M, 256 elements as runs of eight from a grid of 2048 with values g =
 * -1, 0, 1, each run moved by 1/8 up or down: x = d * (2 * scale + 1) * (g +- 1/8). The integers of
 * unpack are eight times the bracket.
 *
 *   IQ1_S, 50 bytes (1.5625 bits)   0  1   2 .. 33   34 .. 49
 *                                   [d ]   [qs   ]   [qh    ]
 *   d f16; qs: the low eight bits of 32 grid indices; qh: a 16-bit word for each 32 elements: three
 *   bits for the high part of each of its four indices, three bits scale, one bit: down.
 *
 *   IQ1_M, 56 bytes (1.75 bits)     0 .. 31   32 .. 47   48 .. 55
 *                                   [qs   ]   [qh    ]   [scales]
 *   qh: four bits a run: three for the high part of the index, one: down; scales: four 16-bit words
 *   with four scales of three bits each, for 16 elements each, and in their top four bits the f16
 *   d, lowest first.
 */
#include "compute/quant_iq.h"

typedef struct block_iq1_s {
    uint8_t d[2];
    uint8_t qs[32];
    uint8_t qh[16];
} block_iq1_s;
_Static_assert(sizeof(block_iq1_s) == 50, "IQ1_S block");

typedef struct block_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];
    uint8_t scales[8];
} block_iq1_m;
_Static_assert(sizeof(block_iq1_m) == 56, "IQ1_M block");

// 8 g + 1 or 8 g - 1 of a run. g + 1 is stored, so 8 is taken off: by adding 120 and flipping the
// top bit, which lets no byte borrow from the next.
static inline void iq1_run(int8_t *q, uint32_t index, bool down)
{
    store_u64(q, (8 * spread2(iq1_grid[index]) + BYTES(down ? 119 : 121)) ^ BYTES(0x80));
}

static inline void iq1_s_unpack_block(int8_t *restrict q, float *restrict scale,
                                      float *restrict min, const block_iq1_s *restrict b)
{
    (void)min;
    float d = load_f16(b->d);
    for (int s = 0; s < 8; s++) {
        uint32_t high = load_u16(b->qh + 2 * s);
        scale[s] = d * (float)(2 * (high >> 12 & 7) + 1) * 0.125f;
        for (int l = 0; l < 4; l++)
            iq1_run(q + 32 * s + 8 * l, b->qs[4 * s + l] | (high >> 3 * l & 7) << 8, high >> 15);
    }
}
QUANT_DECODERS(iq1_s, 256, 32, false)

static inline void iq1_m_unpack_block(int8_t *restrict q, float *restrict scale,
                                      float *restrict min, const block_iq1_m *restrict b)
{
    (void)min;
    uint32_t d_bits = 0;
    for (int k = 0; k < 4; k++)
        d_bits |= (uint32_t)(load_u16(b->scales + 2 * k) >> 12) << 4 * k;
    float d = f16_to_f32((uint16_t)d_bits);
    for (int s = 0; s < 16; s++) {
        uint32_t sc = (uint32_t)load_u16(b->scales + 2 * (s / 4)) >> 3 * (s % 4) & 7;
        scale[s] = d * (float)(2 * sc + 1) * 0.125f;
    }
    for (int r = 0; r < 32; r++) {
        uint32_t high = (uint32_t)b->qh[r / 2] >> 4 * (r % 2);
        iq1_run(q + 8 * r, b->qs[r] | (high & 7) << 8, high & 8);
    }
}
QUANT_DECODERS(iq1_m, 256, 16, false)

const quant_format quant_iq1_s = {
    .name = "iq1_s",
    .ggml_type = 19,
    .block_size = 256,
    .block_bytes = sizeof(block_iq1_s),
    .sub = 32,
    .dequant = iq1_s_dequant,
    .unpack = iq1_s_unpack,
};

const quant_format quant_iq1_m = {
    .name = "iq1_m",
    .ggml_type = 29,
    .block_size = 256,
    .block_bytes = sizeof(block_iq1_m),
    .sub = 16,
    .dequant = iq1_m_dequant,
    .unpack = iq1_m_unpack,
};
