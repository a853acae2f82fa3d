/* matmul_avxvnni.c: the shared integer products at this level. */
#include "compute/cpu/x86/dot_avxvnni.h"

#include "compute/cpu/levels.h"
#include "compute/cpu/matmul_int8.h"

void init_avxvnni_matmul(cpu_kernels *k)
{
    k->matmul_int8 = matmul_int8;
    k->reads_by_vectors = reads_by_vectors;
}
