/*
 * dots.h: products of vectors of bytes, written once over the level's own register:
 *
 *   di             a register of bytes, or of 32-bit sums
 *   DI_BYTES       its size
 *   DOTS_Q         queries of a tile; its vectors are 4
 *   di_weight      what di_step wants to be made of DI_BYTES of v, once for a tile's queries
 *   di_step        acc + products of the bytes of v and q
 *   di_store4      the sums over the lanes of four registers, less `less`
 *   di_offset      128 for levels whose di_step adds it to each byte of v, else 0
 *
 * A tile keeps DOTS_Q x 4 sums in registers, so that each byte loaded serves several products.
 */
#ifndef COMPUTE_CPU_DOTS_H
#define COMPUTE_CPU_DOTS_H

#include "compute/cpu/kernels.h"

KERNEL_INLINE void dots_tile(int32_t *out, size_t out_stride, const int8_t *const *q, int n_q,
                             const int8_t *const *v, int n)
{
    di acc[DOTS_Q * 4], sum[DOTS_Q];
    KERNEL_UNROLL for (int i = 0; i < n_q * 4; i++) acc[i] = di_zero();
    KERNEL_UNROLL for (int i = 0; i < n_q; i++) sum[i] = di_zero();
    for (int k = 0; k < n; k += DI_BYTES) {
        di w[4];
        KERNEL_UNROLL for (int j = 0; j < 4; j++) w[j] = di_weight(di_load(v[j] + k));
        KERNEL_UNROLL for (int i = 0; i < n_q; i++)
        {
            di x = di_load(q[i] + k);
            if (di_offset) sum[i] = di_sum(sum[i], x);
            KERNEL_UNROLL for (int j = 0; j < 4; j++) acc[i * 4 + j] =
                di_step(acc[i * 4 + j], w[j], x);
        }
    }
    KERNEL_UNROLL for (int i = 0; i < n_q; i++)
        di_store4(out + (size_t)i * out_stride, acc + i * 4, di_offset ? sum[i] : di_zero());
}

static void dots_i8(int32_t *out, size_t out_stride, const int8_t *const *q, int n_q,
                    const int8_t *const *v, int n_v, int n)
{
    for (int i = 0, m; i < n_q; i += m) {
        m = n_q - i >= DOTS_Q ? DOTS_Q : 1;
        int32_t *row = out + (size_t)i * out_stride;
        for (int j = 0; j < n_v; j += 4) {
            int left = n_v - j, stride = left < 4 ? 4 : (int)out_stride;
            const int8_t *some[4];
            int32_t part[DOTS_Q * 4];
            for (int l = 0; l < 4; l++)
                some[l] = v[j + (l < left ? l : 0)];
            int32_t *to = left < 4 ? part : row + j;
            if (m == DOTS_Q)
                dots_tile(to, (size_t)stride, q + i, DOTS_Q, some, n);
            else
                dots_tile(to, (size_t)stride, q + i, 1, some, n);
            for (int r = 0; left < 4 && r < m; r++)
                for (int l = 0; l < left; l++)
                    row[(size_t)r * out_stride + (size_t)(j + l)] = part[r * 4 + l];
        }
    }
}

#endif
