/*
 * quant_float.c: F32, F16 and BF16, the formats without blocks. Two or four bytes an element,
 * little-endian, at any address.
 */
#include "compute/quant_block.h"

static void f32_dequant(float *restrict y, const void *blocks, size_t n)
{
    memcpy(y, blocks, 4 * n);
}

static void f32_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    memcpy(blocks, x, 4 * n);
}

// f16_to_f32 without branches (gcc makes vectors only of the masks), 2.5 times as fast in a loop. A
// subnormal is made by putting its mantissa behind a leading one at 2^-14 and taking that one off
// again, which is exact.
static inline float f16_widen(uint16_t h)
{
    uint32_t abs = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t normal = abs + (112u << 23);
    uint32_t subnormal = f32_bits(f32_from_bits((abs & 0x007fffffu) + (113u << 23)) - 0x1p-14f);
    uint32_t small = -(uint32_t)(abs < 0x00800000u), special = -(uint32_t)(abs >= 0x0f800000u);
    uint32_t u =
        (subnormal & small) | (normal & ~small) | (special & 0x7f800000u); // special: inf, NaN
    return f32_from_bits(u | sign);
}

static void f16_dequant(float *restrict y, const void *blocks, size_t n)
{
    const uint8_t *restrict p = blocks;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        y[i] = f16_widen(h);
    }
}

static void f16_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    uint8_t *p = blocks;
    for (size_t i = 0; i < n; i++)
        store_f16(p + 2 * i, x[i]);
}

static void bf16_dequant(float *restrict y, const void *blocks, size_t n)
{
    const uint8_t *restrict p = blocks;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        y[i] = bf16_to_f32(h);
    }
}

static void bf16_quantize(void *blocks, const float *x, const float *weight, size_t n)
{
    (void)weight;
    uint8_t *p = blocks;
    for (size_t i = 0; i < n; i++)
        store_u16(p + 2 * i, bf16_from_f32(x[i]));
}

const quant_format quant_f32 = {
    .name = "f32",
    .ggml_type = 0,
    .block_size = 1,
    .block_bytes = 4,
    .dequant = f32_dequant,
    .quantize = f32_quantize,
};

const quant_format quant_f16 = {
    .name = "f16",
    .ggml_type = 1,
    .block_size = 1,
    .block_bytes = 2,
    .dequant = f16_dequant,
    .quantize = f16_quantize,
};

const quant_format quant_bf16 = {
    .name = "bf16",
    .ggml_type = 30,
    .block_size = 1,
    .block_bytes = 2,
    .dequant = bf16_dequant,
    .quantize = bf16_quantize,
};
