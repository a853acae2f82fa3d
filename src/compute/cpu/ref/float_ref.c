/* float_ref.c: the shared float kernels in plain C: these define the result. */
#include "compute/cpu/ref/vec_ref.h"

#include "compute/cpu/float_kernels.h"
#include "compute/cpu/levels.h"

void init_ref_float(cpu_kernels *k) { float_kernels_install(k); }
