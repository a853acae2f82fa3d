/* coarse_dotprod.c: scores from a coarse copy at this level. */
#include "compute/cpu/arm/vec_dotprod.h"

#include "compute/cpu/coarse_kernels.h"
#include "compute/cpu/levels.h"

void init_dotprod_coarse(cpu_kernels *k)
{
    k->coarse_scores = coarse_scores;
    k->coarse_pack = coarse_pack;
}
