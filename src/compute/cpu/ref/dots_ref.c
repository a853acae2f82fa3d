/* dots_ref.c: products of vectors of bytes, in plain C. */
#include "compute/cpu/ref/vec_ref.h"

#define DOTS_F_Q 1
#define DOTS_F_V 1
#include "compute/cpu/dots_float.h"
#include "compute/cpu/levels.h"

static void dots_i8(int32_t *out, size_t out_stride, const int8_t *const *q, int n_q,
                    const int8_t *const *v, int n_v, int n)
{
    for (int i = 0; i < n_q; i++)
        for (int j = 0; j < n_v; j++) {
            int32_t sum = 0;
            for (int k = 0; k < n; k++)
                sum += q[i][k] * v[j][k];
            out[(size_t)i * out_stride + (size_t)j] = sum;
        }
}

void init_ref_dots(cpu_kernels *k)
{
    k->dots_i8 = dots_i8;
    k->dots_float = dots_float;
}
