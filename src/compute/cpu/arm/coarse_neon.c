/* coarse_neon.c: scores from a coarse copy at this level. */
#include "compute/cpu/arm/vec_neon.h"

#include "compute/cpu/coarse_kernels.h"
#include "compute/cpu/levels.h"

void init_neon_coarse(cpu_kernels *k)
{
    k->coarse_scores = coarse_scores;
    k->coarse_pack = coarse_pack;
}
