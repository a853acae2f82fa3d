/* attn_neon.c: the shared attention kernels at this level. */
#include "compute/cpu/arm/vec_neon.h"

#include "compute/cpu/attn_kernels.h"
#include "compute/cpu/levels.h"

void init_neon_attn(cpu_kernels *k) { attn_kernels_install(k); }
