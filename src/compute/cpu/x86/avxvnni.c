/* avxvnni.c: what this level improves. */
#include "compute/cpu/levels.h"

void init_avxvnni(cpu_kernels *k) { init_avxvnni_matmul(k); }
