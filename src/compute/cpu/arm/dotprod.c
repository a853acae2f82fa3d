/* dotprod.c: what this level improves: the integer products. */
#include "compute/cpu/levels.h"

void init_dotprod(cpu_kernels *k)
{
    init_dotprod_matmul(k);
    init_dotprod_dots(k);
    init_dotprod_coarse(k);
}
