/* vec_dotprod.h: dot products of bytes by SDOT (FEAT_DotProd): four at a time, added in 32 bits. */
#ifndef COMPUTE_CPU_ARM_VEC_DOTPROD_H
#define COMPUTE_CPU_ARM_VEC_DOTPROD_H

#include "compute/cpu/arm/vec_arm.h"

#define TILE_PANELS 2

KERNEL_INLINE int dot_width(int w_max)
{
    (void)w_max;
    return 1;
}
KERNEL_INLINE vi vi_dot(vi acc, const vi *w, const int8_t *x, size_t step, int n, int w_max)
{
    (void)w_max;
    KERNEL_UNROLL for (int j = 0; j < n; j++) acc =
        vdotq_s32(acc, vreinterpretq_s8_s32(w[j]),
                  vreinterpretq_s8_s32(vi_dword(x + (size_t)j * step)));
    return acc;
}

#endif
