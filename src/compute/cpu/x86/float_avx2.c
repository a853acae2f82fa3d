/* float_avx2.c: the shared float kernels at this level. */
#include "compute/cpu/x86/vec_avx2.h"

#include "compute/cpu/float_kernels.h"
#include "compute/cpu/levels.h"

void init_avx2_float(cpu_kernels *k) { float_kernels_install(k); }
