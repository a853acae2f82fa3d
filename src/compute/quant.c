/*
 * quant.c: the table of formats, and the two definitions on which all integer kernels are measured:
 * the rounding of activations and the dot product.
 */
#include "compute/quant.h"

#include <assert.h>

#include "compute/quant_block.h"

#define BLOCK_MAX 256 // elements of the largest block

const quant_format *const quant_formats[DT_COUNT] = {
#define X(NAME, row) [DT_##NAME] = &quant_##row,
    QUANT_LIST(X)
#undef X
};

int quant_find_ggml(uint32_t ggml_type)
{
    for (int i = 0; i < DT_COUNT; i++)
        if (quant_formats[i]->ggml_type >= 0 &&
            (uint32_t)quant_formats[i]->ggml_type == ggml_type)
            return i;
    return -1;
}

static bool same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        char c = *b >= 'A' && *b <= 'Z' ? (char)(*b - 'A' + 'a') : *b;
        if (*a != c) return false;
        if (!c) return true;
    }
}

int quant_find_name(const char *name)
{
    for (int i = 0; i < DT_COUNT; i++)
        if (same_name(quant_formats[i]->name, name)) return i;
    return -1;
}

size_t quant_row_bytes(dtype type, size_t n)
{
    const quant_format *f = quant_formats[type];
    size_t block = (size_t)f->block_size, n_blocks = n / block, bytes;
    if (n % block || __builtin_mul_overflow(n_blocks, (size_t)f->block_bytes, &bytes)) return 0;
    return bytes;
}

float quant_dot(dtype type, const void *row, const act_row *x, size_t n)
{
    const quant_format *f = quant_formats[type];
    assert(f->sub && n % 32 == 0 && n % (size_t)f->block_size == 0);
    int8_t q[BLOCK_MAX];
    float scale[BLOCK_MAX / 16], min[BLOCK_MAX / 16], acc = 0;
    const uint8_t *block = row;

    for (size_t at = 0; at < n; at += (size_t)f->block_size, block += f->block_bytes) {
        f->unpack(q, scale, min, block, (size_t)f->block_size);
        for (int i = 0; i < f->block_size; i += f->sub) {
            size_t k = at + (size_t)i;
            float x_scale = x->scale[k / 32];
            int dot = 0, sum = 0;
            for (int j = 0; j < f->sub; j++)
                dot += q[i + j] * act_value(x->q, k + (size_t)j);
            acc = fmaf(scale[i / f->sub] * x_scale, (float)dot, acc);
            if (!f->has_min) continue;
            for (int j = 0; j < f->sub; j += 16)
                sum += x->sum[(k + (size_t)j) / 16];
            acc = fmaf(min[i / f->sub], x_scale * (float)sum, acc);
        }
    }
    return acc;
}

void quant_act_row(int8_t *q, float *scale, int32_t *sum, const float *x, size_t n)
{
    for (size_t b = 0; b < n / 32; b++, x += 32, q += 32 * ACT_PLANES, sum += 2) {
        uint32_t quad[8] = { 0 };
        for (int i = 0; i < 32; i++) {
            uint32_t abs = f32_bits(x[i]) & 0x7fffffff;
            quad[i / 4] = abs > quad[i / 4] ? abs : quad[i / 4];
        }
        uint32_t amax = 0, rest = 0;
        for (int j = 0; j < 8; j++) { // of equal ones the second is of the rest
            uint32_t less = quad[j] < amax ? quad[j] : amax;
            rest = less > rest ? less : rest;
            amax = quad[j] > amax ? quad[j] : amax;
        }
        act_block a = act_block_of(amax, n < ACT_NARROW ? 0 : rest);
        scale[b] = a.scale;
        sum[0] = sum[1] = 0;
        for (int i = 0; i < 32; i++) {
            float t = a.codes ? rintf(x[i] * a.inv) : 0;
            float hi = rintf(t / 256), lo = t - 256 * hi;
            int8_t *p = q + i / 4 * 4 * ACT_PLANES + i % 4;
            p[0] = (int8_t)hi;
            p[4] = (int8_t)(lo < -127 ? -127 : lo > 127 ? 127 : lo);
            sum[i / 16] += 256 * p[0] + p[4];
        }
    }
}
