/* float_avx512vnni.c: the shared float kernels at this level. */
#include "compute/cpu/x86/vec_avx512.h"

#include "compute/cpu/float_kernels.h"
#include "compute/cpu/levels.h"

void init_avx512vnni_float(cpu_kernels *k) { float_kernels_install(k); }
