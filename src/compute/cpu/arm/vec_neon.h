/* vec_neon.h: dot products of bytes on armv8-a: products and their first sums in 16 bits. */
#ifndef COMPUTE_CPU_ARM_VEC_NEON_H
#define COMPUTE_CPU_ARM_VEC_NEON_H

#include "compute/cpu/arm/vec_arm.h"

#define TILE_PANELS 1

/* A 16-bit lane adds n products and is added to its neighbour: 2 n * 127 * w_max must fit. */
KERNEL_INLINE int dot_width(int w_max)
{
    return w_max > 63 ? 1 : w_max > 31 ? 2 : w_max > 15 ? 4 : 8;
}
KERNEL_INLINE vi vi_dot(vi acc, const vi *w, const int8_t *x, size_t step, int n, int w_max)
{
    int16x8_t lo = vdupq_n_s16(0), hi = lo; // of outputs 0 and 1, 2 and 3: k = 0 … 3 each
    (void)w_max;
    KERNEL_UNROLL for (int j = 0; j < n; j++)
    {
        int8x16_t v = vreinterpretq_s8_s32(vi_dword(x + (size_t)j * step));
        int8x16_t u = vreinterpretq_s8_s32(w[j]);
        if (j) {
            lo = vmlal_s8(lo, vget_low_s8(u), vget_low_s8(v));
            hi = vmlal_high_s8(hi, u, v);
        } else {
            lo = vmull_s8(vget_low_s8(u), vget_low_s8(v));
            hi = vmull_high_s8(u, v);
        }
    }
    return vpadalq_s16(acc, vpaddq_s16(lo, hi));
}

#endif
