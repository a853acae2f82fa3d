/* matmul_avx2.c: the shared matrix products at this level. */
#include "compute/cpu/x86/dot_avx2.h"

#include "compute/cpu/levels.h"
#include "compute/cpu/matmul_f32.h"
#include "compute/cpu/matmul_int8.h"

void init_avx2_matmul(cpu_kernels *k)
{
    k->matmul_int8 = matmul_int8;
    k->reads_by_vectors = reads_by_vectors;
    k->matmul_f32 = matmul_f32;
}
