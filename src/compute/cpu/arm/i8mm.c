/* i8mm.c: what this level improves: the matrix products of integers. */
#include "compute/cpu/levels.h"

void init_i8mm(cpu_kernels *k) { init_i8mm_matmul(k); }
