/* matmul_dotprod.c: the shared matrix products at this level. */
#include "compute/cpu/arm/vec_dotprod.h"

#include "compute/cpu/levels.h"
#include "compute/cpu/matmul_int8.h"

void init_dotprod_matmul(cpu_kernels *k)
{
    k->matmul_int8 = matmul_int8;
    k->reads_by_vectors = reads_by_vectors;
}
