/* attn_avx2.c: the shared attention kernels at this level. */
#include "compute/cpu/x86/vec_avx2.h"

#include "compute/cpu/attn_kernels.h"
#include "compute/cpu/levels.h"

void init_avx2_attn(cpu_kernels *k) { attn_kernels_install(k); }
