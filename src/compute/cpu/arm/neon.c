/* neon.c: what this level improves. */
#include "compute/cpu/levels.h"

void init_neon(cpu_kernels *k)
{
    init_neon_float(k);
    init_neon_attn(k);
    init_neon_matmul(k);
    init_neon_dots(k);
    init_neon_coarse(k);
}
