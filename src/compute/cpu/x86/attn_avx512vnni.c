/* attn_avx512vnni.c: the shared attention kernels at this level. */
#include "compute/cpu/x86/vec_avx512.h"

#include "compute/cpu/attn_kernels.h"
#include "compute/cpu/levels.h"

void init_avx512vnni_attn(cpu_kernels *k) { attn_kernels_install(k); }
