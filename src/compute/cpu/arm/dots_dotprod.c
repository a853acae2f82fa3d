/* dots_dotprod.c: products of vectors of bytes by SDOT. */
#include "compute/cpu/arm/di_arm.h"
#include "compute/cpu/levels.h"

KERNEL_INLINE di di_step(di acc, di v, di q)
{
    return vdotq_s32(acc, vreinterpretq_s8_s32(v), vreinterpretq_s8_s32(q));
}

#include "compute/cpu/dots.h"

void init_dotprod_dots(cpu_kernels *k) { k->dots_i8 = dots_i8; }
