/* avx2.c: what this level improves. */
#include "compute/cpu/levels.h"

void init_avx2(cpu_kernels *k)
{
    init_avx2_float(k);
    init_avx2_attn(k);
    init_avx2_matmul(k);
    init_avx2_dots(k);
    init_avx2_coarse(k);
}
