/* matmul_i8mm.c: the shared matrix products at this level. */
#include "compute/cpu/arm/vec_i8mm.h"

#include "compute/cpu/levels.h"
#include "compute/cpu/matmul_int8.h"

void init_i8mm_matmul(cpu_kernels *k)
{
    k->matmul_int8 = matmul_int8;
    k->reads_by_vectors = reads_by_vectors;
}
