/*
 * dots_float.h: products of float vectors that lie in rows, read as they lie: what a scan for the
 * largest products wants, where each row is read once and memory is what it waits for. Written over
 * v16; a level says by DOTS_F_Q and DOTS_F_V how many products it keeps in registers.
 */
#ifndef COMPUTE_CPU_DOTS_FLOAT_H
#define COMPUTE_CPU_DOTS_FLOAT_H

#include "compute/cpu/kernels.h"

#define DOTS_AHEAD 2048 // bytes that are fetched ahead of a row's reading

/* Elements k … k + 15 of a row, of which the first `left` exist. */
KERNEL_INLINE v16 dots_load(const void *row, int k, int left, bool half)
{
    const float *f = (const float *)row + k;
    if (!half) return left >= 16 ? v16_load(f) : v16_load_n(f, left);
    const uint16_t *h = (const uint16_t *)row + k;
    if (left >= 16) return v16_load_f16(h);
    uint16_t some[16] = { 0 };
    memcpy(some, h, (size_t)left * sizeof *h);
    return v16_load_f16(some);
}

KERNEL_INLINE void dots_float_tile(float *out, size_t out_stride, const float *const *q, int n_q,
                                   const void *const *v, int n_v, int n, bool half)
{
    v16 acc[DOTS_F_Q * DOTS_F_V], w[DOTS_F_V];
    KERNEL_UNROLL for (int i = 0; i < n_q * n_v; i++) acc[i] = v16_set1(0.0f);
    int whole = n / 16 * 16;
    for (int k = 0; k < whole; k += 16) {
        KERNEL_UNROLL for (int j = 0; j < n_v; j++)
        {
            if (n_q == 1) PREFETCH((const uint8_t *)v[j] + (size_t)k * (half ? 2 : 4) + DOTS_AHEAD);
            w[j] = dots_load(v[j], k, 16, half);
        }
        KERNEL_UNROLL for (int i = 0; i < n_q; i++)
        {
            v16 x = v16_load(q[i] + k);
            KERNEL_UNROLL for (int j = 0; j < n_v; j++) acc[i * n_v + j] =
                v16_fma(w[j], x, acc[i * n_v + j]);
        }
    }
    if (whole < n) {
        KERNEL_UNROLL for (int i = 0; i < n_q; i++)
        {
            v16 x = v16_load_n(q[i] + whole, n - whole);
            KERNEL_UNROLL for (int j = 0; j < n_v; j++) acc[i * n_v + j] =
                v16_fma(dots_load(v[j], whole, n - whole, half), x, acc[i * n_v + j]);
        }
    }
    KERNEL_UNROLL for (int i = 0; i < n_q; i++) KERNEL_UNROLL for (int j = 0; j < n_v; j++)
        out[(size_t)i * out_stride + (size_t)j] = v16_sum(acc[i * n_v + j]);
}

KERNEL_INLINE void dots_float_rows(float *out, size_t out_stride, const float *const *q, int n_q,
                                   const void *const *v, int n_v, int n, bool half)
{
    for (int i = 0, m; i < n_q; i += m) {
        m = n_q - i >= DOTS_F_Q ? DOTS_F_Q : 1;
        for (int j = 0, l; j < n_v; j += l) {
            l = n_v - j >= DOTS_F_V ? DOTS_F_V : 1;
            float *to = out + (size_t)i * out_stride + (size_t)j;
            if (m == DOTS_F_Q && l == DOTS_F_V)
                dots_float_tile(to, out_stride, q + i, DOTS_F_Q, v + j, DOTS_F_V, n, half);
            else if (m == DOTS_F_Q)
                dots_float_tile(to, out_stride, q + i, DOTS_F_Q, v + j, 1, n, half);
            else if (l == DOTS_F_V)
                dots_float_tile(to, out_stride, q + i, 1, v + j, DOTS_F_V, n, half);
            else
                dots_float_tile(to, out_stride, q + i, 1, v + j, 1, n, half);
        }
    }
}

static void dots_float(float *out, size_t out_stride, const float *const *q, int n_q,
                       const void *const *v, int n_v, int n, bool half)
{
    if (half)
        dots_float_rows(out, out_stride, q, n_q, v, n_v, n, true);
    else
        dots_float_rows(out, out_stride, q, n_q, v, n_v, n, false);
}

#endif
