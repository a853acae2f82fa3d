/*
 * matmul_ref.c: matrix products in plain C: each weight row is unpacked once into scratch, then
 * runs over all rows of activations. The sums are quant_dot's (int8) and the blocked ones of
 * kernels.h.
 */
#include <math.h>

#include "compute/cpu/levels.h"

/* One unpacked weight row times one row of activations; quant_dot says the order. */
static float dot_int8(const int8_t *q, const float *scale, const float *min, int sub,
                      const act_row *x, int n)
{
    float acc = 0;
    for (int i = 0; i < n; i += sub) {
        float x_scale = x->scale[i / 32];
        int dot = 0, sum = 0;
        for (int j = i; j < i + sub; j++)
            dot += q[j] * act_value(x->q, (size_t)j);
        acc = fmaf(scale[i / sub] * x_scale, (float)dot, acc);
        if (!min) continue;
        for (int j = i; j < i + sub; j += 16)
            sum += x->sum[j / 16];
        acc = fmaf(min[i / sub], x_scale * (float)sum, acc);
    }
    return acc;
}

static void matmul_int8(const matmul_args *a)
{
    const tensor *w = a->w;
    const quant_format *f = quant_formats[w->type];
    int n = w->n_cols;
    int8_t *q = a->scratch;
    float *scale = (float *)(void *)(q + (n + 63) / 64 * 64), *min = scale + n / 16;
    for (int o = a->begin; o < a->end; o++) {
        f->unpack(q, scale, min, w->data + (size_t)o * w->row_bytes, (size_t)n);
        for (int r = 0; r < a->x->n_rows; r++) {
            size_t at = (size_t)r * a->x->stride;
            act_row x = { a->x->q + at * ACT_PLANES, a->x->scale + at / 32, a->x->sum + at / 16 };
            a->y[(size_t)r * a->y_stride + (size_t)o] =
                dot_int8(q, scale, f->has_min ? min : NULL, f->sub, &x, n);
        }
    }
}

static void matmul_f32(const matmul_args *a)
{
    const tensor *w = a->w;
    int n = w->n_cols;
    float *row = a->scratch;
    for (int o = a->begin; o < a->end; o++) {
        tensor_row(row, w, o);
        for (int r = 0; r < a->x->n_rows; r++) {
            const float *x = a->x->x + (size_t)r * a->x->stride;
            float acc = 0;
            for (int b = 0; b < n; b += 32) {
                float acc32 = 0;
                for (int k = b; k < n && k < b + 32; k++)
                    acc32 = fmaf(row[k], x[k], acc32);
                acc += acc32;
            }
            a->y[(size_t)r * a->y_stride + (size_t)o] = acc;
        }
    }
}

void init_ref_matmul(cpu_kernels *k)
{
    k->matmul_int8 = matmul_int8;
    k->matmul_f32 = matmul_f32;
}
