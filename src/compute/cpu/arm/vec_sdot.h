/* vec_sdot.h: what the levels with SDOT (FEAT_DotProd) share: four products of bytes a lane, added
 * in 32 bits. */
#ifndef COMPUTE_CPU_ARM_VEC_SDOT_H
#define COMPUTE_CPU_ARM_VEC_SDOT_H

#include "compute/cpu/arm/vec_arm.h"

#define TILE_PANELS 2
#define LEVEL_FEW_DOTS // of int8_block.h
#define LEVEL_STORED_DOTS

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
