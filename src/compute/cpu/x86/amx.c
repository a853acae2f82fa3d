/* amx.c: what this level improves. */
#include "compute/cpu/levels.h"

void init_amx(cpu_kernels *k) { init_amx_matmul(k); }
