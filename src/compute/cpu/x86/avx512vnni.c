/* avx512vnni.c: what this level improves. */
#include "compute/cpu/levels.h"

void init_avx512vnni(cpu_kernels *k)
{
    init_avx512vnni_float(k);
    init_avx512vnni_attn(k);
    init_avx512vnni_matmul(k);
    init_avx512vnni_dots(k);
    init_avx512vnni_coarse(k);
}
