/* attn_ref.c: the shared attention kernels in plain C: these define the result. */
#include "compute/cpu/ref/vec_ref.h"

#include "compute/cpu/attn_kernels.h"
#include "compute/cpu/levels.h"

void init_ref_attn(cpu_kernels *k) { attn_kernels_install(k); }
