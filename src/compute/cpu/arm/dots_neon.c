/* dots_neon.c: products of vectors of floats, and of bytes: a 16-bit lane adds two, which fit
 * because no byte is -128. */
#include "compute/cpu/arm/di_arm.h"
#include "compute/cpu/levels.h"

KERNEL_INLINE di di_step(di acc, di v, di q)
{
    int8x16_t a = vreinterpretq_s8_s32(v), b = vreinterpretq_s8_s32(q);
    int16x8_t pairs = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    return vpadalq_s16(acc, vmlal_high_s8(pairs, a, b));
}

#define DOTS_F_Q 1
#define DOTS_F_V 4
#include "compute/cpu/dots.h"
#include "compute/cpu/dots_float.h"

void init_neon_dots(cpu_kernels *k)
{
    k->dots_i8 = dots_i8;
    k->dots_float = dots_float;
}
