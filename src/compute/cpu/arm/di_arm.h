/* di_arm.h: the register of dots.h, of which the levels differ only in the step. */
#ifndef COMPUTE_CPU_ARM_DI_ARM_H
#define COMPUTE_CPU_ARM_DI_ARM_H

#include "compute/cpu/arm/vec_arm.h"

#define DOTS_Q 4
#define DI_BYTES 16
typedef int32x4_t di;
enum { di_offset = 0 };

KERNEL_INLINE di di_zero(void) { return vdupq_n_s32(0); }
KERNEL_INLINE di di_load(const int8_t *p) { return vreinterpretq_s32_s8(vld1q_s8(p)); }
KERNEL_INLINE di di_weight(di v) { return v; }
KERNEL_INLINE di di_sum(di acc, di q)
{
    (void)q;
    return acc;
}
KERNEL_INLINE void di_store4(int32_t *out, const di *acc, di less)
{
    (void)less;
    vst1q_s32(out, vpaddq_s32(vpaddq_s32(acc[0], acc[1]), vpaddq_s32(acc[2], acc[3])));
}

#endif
