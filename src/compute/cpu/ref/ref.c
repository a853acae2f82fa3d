/* ref.c: the reference level: plain C for every kernel. */
#include "compute/cpu/levels.h"

void init_ref(cpu_kernels *k)
{
    k->name = "ref";
    init_ref_float(k);
    init_ref_attn(k);
    init_ref_matmul(k);
    init_ref_dots(k);
    init_ref_coarse(k);
}
