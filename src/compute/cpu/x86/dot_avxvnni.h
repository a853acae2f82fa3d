/*
 * dot_avxvnni.h: the dots of bytes of vec_matmul.h by VPDPBUSD in its VEX form, which processors
 * without AVX-512 have. It takes unsigned weights: signed ones go in as w + 128.
 */
#ifndef COMPUTE_CPU_X86_DOT_H
#define COMPUTE_CPU_X86_DOT_H

#include "compute/cpu/x86/dpbusd_avxvnni.h"
#include "compute/cpu/x86/vec_avx2.h"

#define SIGNED_OFFSET 128

KERNEL_INLINE vi vi_signed_weights(vi w)
{
    return _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
}

KERNEL_INLINE int dot_width(int w_max)
{
    (void)w_max;
    return 1;
}
KERNEL_INLINE vi vi_dot(vi acc, const vi *w, const int8_t *x, size_t step, int n, int w_max)
{
    (void)w_max;
    KERNEL_UNROLL for (int j = 0; j < n; j++)
    {
        int x4;
        memcpy(&x4, x + (size_t)j * step, 4);
        acc = vi_dpbusd(acc, w[j], _mm256_set1_epi32(x4));
    }
    return acc;
}

#endif
