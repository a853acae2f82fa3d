/*
 * vec_dotprod.h: dot products of bytes by SDOT. A dword of activations is named as a lane of 16
 * bytes, so that none has to be spread over a register.
 */
#ifndef COMPUTE_CPU_ARM_VEC_DOTPROD_H
#define COMPUTE_CPU_ARM_VEC_DOTPROD_H

#include "compute/cpu/arm/vec_sdot.h"

/* acc + w . dword `lane` of x; lane is constant after inlining. */
KERNEL_INLINE vi dot_lane(vi acc, vi w, vi x, int lane)
{
    int8x16_t u = vreinterpretq_s8_s32(w), v = vreinterpretq_s8_s32(x);
    switch (lane) {
    case 0: return vdotq_laneq_s32(acc, u, v, 0);
    case 1: return vdotq_laneq_s32(acc, u, v, 1);
    case 2: return vdotq_laneq_s32(acc, u, v, 2);
    default: return vdotq_laneq_s32(acc, u, v, 3);
    }
}

KERNEL_INLINE void few_dots(vi *sum, const vi *w, const int8_t *q, int dwords, int w_max, int rows)
{
    vi high[4];
    (void)w_max;
    KERNEL_UNROLL for (int r = 0; r < rows; r++) high[r] = vi_zero();
    KERNEL_UNROLL for (int i = 0; i < dwords * rows; i += 2)
    { // 16 bytes are both planes of two rows, or of two dwords of one row
        vi x = vi_load(q + i * 8);
        KERNEL_UNROLL for (int l = 0; l < 2; l++)
        {
            int j = (i + l) / rows, r = (i + l) % rows;
            high[r] = dot_lane(high[r], w[j], x, 2 * l);
            sum[r] = dot_lane(sum[r], w[j], x, 2 * l + 1);
        }
    }
    KERNEL_UNROLL for (int r = 0; r < rows; r++) sum[r] = vi_add(sum[r], vi_sll(high[r], 8));
}

KERNEL_INLINE void stored_dots(vi *sum, const uint8_t *const *w, const int *x, int dwords,
                               int w_max, int rows, int panels)
{
    (void)w_max;
    KERNEL_UNROLL for (int i = 0; i < dwords * rows; i += 4)
    { // 16 bytes are four rows, or more dwords of fewer rows
        vi v = vi_load(x + i);
        KERNEL_UNROLL for (int l = 0; l < 4; l++)
        {
            int j = (i + l) / rows, r = (i + l) % rows;
            KERNEL_UNROLL for (int p = 0; p < panels; p++) sum[r * panels + p] =
                dot_lane(sum[r * panels + p], vi_load(w[p] + j * LANES * 4), v, l);
        }
    }
}

#endif
