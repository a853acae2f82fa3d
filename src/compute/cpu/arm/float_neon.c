/* float_neon.c: the shared float kernels at this level. */
#include "compute/cpu/arm/vec_neon.h"

#include "compute/cpu/float_kernels.h"
#include "compute/cpu/levels.h"

void init_neon_float(cpu_kernels *k) { float_kernels_install(k); }
